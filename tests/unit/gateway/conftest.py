"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.gateway import Gateway, GatewayConfig, ModelRule, Upstream
from tests.doubles.upstream import Reply, Script, scripted_upstream
from tests.unit.gateway.rig import KEY, Rig


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    """Return a function that starts a gateway with a scripted upstream and settings."""
    monkeypatch.setenv("TEST_KEY", KEY)
    with ExitStack() as stack:

        def begin(
            script: Script | Reply, models: tuple[ModelRule, ...] = (), **settings: Any
        ) -> Rig:
            upstream = stack.enter_context(
                scripted_upstream(script if callable(script) else lambda _: script)
            )
            openai = Upstream(name="openai", url=upstream.url, key_env="TEST_KEY")
            anthropic = Upstream(
                name="anthropic", url=upstream.url, wire="anthropic", key_env="TEST_KEY"
            )
            rules = models or (
                ModelRule(name="m", upstream="openai"),
                ModelRule(name="c", upstream="anthropic"),
            )
            log = tmp_path / "log.jsonl"
            config = GatewayConfig(
                upstreams=(openai, anthropic),
                models=rules,
                log=str(log),
                **{"backoff_s": 0.01, "deadline_s": 10.0, **settings},
            )
            return Rig(stack.enter_context(Gateway(config)), upstream, tmp_path, log)

        yield begin
