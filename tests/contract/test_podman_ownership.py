"""Podman's containers that cannot be removed are reported, and so is a missing program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.cli import main
from hyperruntime.errors import EngineUnavailableError, PruneError
from hyperruntime.host.owner import OwnerIdentity

pytestmark = pytest.mark.engine


@pytest.mark.slow
def test_prune_continues_after_a_container_that_cannot_be_removed(
    runtime: hr.Runtime,
    engine_command: Any,
    busybox_image: str,
    run_labelled: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dead = attrs.evolve(OwnerIdentity.current(), pid=2**22 + 1).to_labels()
    names = [run_labelled(busybox_image, dead) for _ in range(3)]
    stubborn = next(owned.record.id for owned in runtime.containers() if owned.record.id in names)
    shim = tmp_path / "podman"
    shim.write_text(
        f'#!/bin/sh\ncase "$*" in rm*{stubborn}) echo "Error: device busy" >&2; exit 125;; esac\n'
        f'exec {shutil.which("podman")} "$@"\n'
    )
    shim.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(
            PruneError, match=f"{stubborn} could not be removed: .*device busy"
        ) as caught:
            runtime.prune()
        assert main(["--runtime", "podman", "prune"]) == 1
        assert f"{stubborn} could not be removed" in capsys.readouterr().err
    assert set(caught.value.removed) >= {name for name in names if name != stubborn}
    assert set(names) & set(engine_command.containers()) == {stubborn}
    assert stubborn in runtime.prune()


def test_a_missing_podman_program_is_reported(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(tmp_path))
            for use in (
                lambda: runtime.container(hr.ContainerSpec(image=base_image)),
                lambda: runtime.images.load(__file__),
                lambda: started.exec(["true"], user="65534"),
            ):
                with pytest.raises(EngineUnavailableError, match="no `podman` on PATH"):
                    use()
        assert started.exec(["true"]).exit_code == 0
