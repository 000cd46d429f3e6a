"""Podman's lists and removals that fail for a while are repeated."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hyperruntime.errors import EngineError
from hyperruntime.host.process import ProcessResult
from hyperruntime_podman.container import remove
from hyperruntime_podman.images import PodmanImages


@pytest.mark.parametrize(
    ("failures", "words"), [(3, None), (9, "image not known"), (1, "the store is broken")]
)
def test_images_can_be_listed_while_one_is_removed(
    monkeypatch: pytest.MonkeyPatch, failures: int, words: str | None
) -> None:
    """Podman's list then fails because of the removed image and is retried; any other failure is
    raised at once.
    """
    asked: list[str] = []

    def ask(what: str, *words_of_podman: str) -> ProcessResult:
        asked.append(what)
        if len(asked) <= failures:
            raise EngineError(f"{what}: {words or 'reading image: image not known'}")
        return ProcessResult(args=words_of_podman, exit_code=0, stdout=b"[]", stderr=b"")

    monkeypatch.setattr("hyperruntime_podman.images.ask_podman", ask)
    images = PodmanImages(list)
    if words is None:
        assert images.list() == ()
        assert len(asked) == failures + 1
    else:
        with pytest.raises(EngineError, match=words):
            images.list()
        assert len(asked) == (5 if "not known" in words else 1)


@pytest.mark.parametrize(
    ("failures", "how"), [(2, "exit 125"), (99, "exit 125"), (2, "kill -TERM $$"), (2, "exit 0")]
)
def test_a_container_whose_removal_fails_for_a_while_is_removed_with_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, how: str
) -> None:
    error = failures == 99
    program, asked = tmp_path / "podman", tmp_path / "asked"
    # podman-rm(1) prints the name; podman-container-exists(1) exits with 0 if it is there
    program.write_text(
        f"#!/bin/sh\n[ $1 = rm ] || exit 0\necho >>{asked}\n[ $(wc -l <{asked}) -gt {failures} "
        f"] && echo c && exit\n[ '{how}' = 'exit 125' ] && echo 'Error: given PIDs did not die "
        f"within timeout' >&2\n{how}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(
        "hyperruntime_podman.container.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    )
    if error:
        with pytest.raises(EngineError, match=r"container c could not be removed: .*did not die"):
            remove("c")
    else:
        remove("c")
        assert asked.read_text().count("\n") == failures + 1
    assert now == 1000.0 + (10.5 if error else 0.5 * failures)
