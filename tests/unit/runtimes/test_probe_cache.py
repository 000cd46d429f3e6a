"""What a probe found is remembered, and forgotten when it may be wrong; for every engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hyperruntime.driver import EngineInfo
from hyperruntime.host import probe_cache
from hyperruntime.host.probe_cache import ProbeFile, TrustedProbe, forget_probes
from hyperruntime_podman.args import Settings
from hyperruntime_podman.probe import Probe, probe_file

FOUND = Probe(
    version="4.3.1", storage="overlay", settings=Settings(nofile=7, limits={"pids": "no"})
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the remembered probes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def changed(**settings: object) -> bytes:
    """Return the file of a probe with other settings."""
    file = ProbeFile("podman", ("changed",), Probe)
    file.write(FOUND)
    stored = json.loads(file.path.read_text())
    return json.dumps({**stored, "settings": {**stored["settings"], **settings}}).encode()


@pytest.mark.parametrize(
    "odd",
    [
        lambda: b'{"version": "4", "storage": "overlay", "tried": [], "settings": {}}',
        lambda: b"[" * 100_000,
        lambda: b"",
        lambda: b"\xff\0{",
        lambda: b"[]",
        lambda: b"7",
        lambda: changed(limits={"memory_bytes": "perhaps", "pids": "no", "cpus": "no"}),
        lambda: changed(nofile="many"),
        lambda: changed(nofile=-1),
        lambda: changed(x=1),
    ],
)
def test_a_file_that_is_not_exactly_what_was_written_is_not_used(odd: Callable[[], bytes]) -> None:
    file = ProbeFile("podman", ("fact",), Probe)
    assert file.read() is None
    file.write(FOUND)
    assert file.read() == FOUND
    file.path.write_bytes(odd())
    assert file.read() is None
    assert ProbeFile("podman", ("another fact",), Probe).read() is None


def test_a_file_that_cannot_be_written_or_removed_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    ProbeFile("podman", (), Probe).write(FOUND)
    forget_probes("podman")


def test_podmans_probe_is_not_used_after_another_oci_runtime_was_installed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = probe_file().path
    (cache / "crun").write_text("#!/bin/sh\nexit 1\n")
    (cache / "crun").chmod(0o755)
    monkeypatch.setenv("PATH", str(cache), prepend=":")
    assert probe_file().path != before


class Found:
    """What a probe found: the networks that work."""

    def __init__(self, *networks: str) -> None:
        self.networks = networks

    def to_info(self) -> EngineInfo:
        return EngineInfo(engine="e", version="1", rootless=True, networks=self.networks)


def test_a_remembered_probe_that_lacks_a_network_is_repeated_before_the_network_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe of the last minute is trusted: another one would say the same."""
    now = 1000.0
    monkeypatch.setattr(probe_cache, "time", SimpleNamespace(monotonic=lambda: now))
    results = [(Found("none"), True), (Found("none", "host"), False), (Found("none"), False)]
    trusted = TrustedProbe("e", lambda: results.pop(0))
    assert trusted.get_with("none").networks == ("none",)
    assert trusted.get_with("host").networks == ("none", "host")
    known = trusted.info()
    trusted.distrust()
    assert trusted.get_with("bridge").networks == ("none", "host")
    assert trusted.info() is known
    now += 61.0
    trusted.distrust()
    assert trusted.info().networks == ("none",)
    assert results == []
