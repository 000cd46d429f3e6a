"""Apptainer's pulls, without Apptainer."""

from __future__ import annotations

import os
import shlex
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperruntime.errors import ImagePullError
from hyperruntime.layers.store import Store
from hyperruntime_apptainer import build
from hyperruntime_apptainer.images import ApptainerImages, pull_args
from tests.doubles.layers import Oci, entry, layer

LAYER = layer(["bin/", entry("bin/sh", text="shell", mode=0o755)])


def test_plain_http_is_used_only_for_registries_on_this_machine() -> None:
    assert "--no-https" in pull_args("localhost:5000/a", "/x")
    assert "--no-https" not in pull_args("localhost.example.org/a", "/x")


@contextmanager
def unconfined(
    args: Sequence[str], *writable: Path
) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    yield [*args], os.environ


def apptainer(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of this name on PATH, which runs without a namespace of its own."""
    (folder / "apptainer").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "confined", unconfined)


@pytest.mark.parametrize("end", ["echo 'INFO:    Extracting OCI image...'; sleep 600", "exit 0"])
def test_a_pull_takes_the_parts_from_the_cache_and_waits_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    oci = Oci()
    image = {"digest": oci.manifest(LAYER, WorkingDir="/w", Env=["A=1"])}
    layout = tmp_path / "layout"
    with tarfile.open(oci.write(tmp_path / "oci.tar", image)) as tar:
        tar.extractall(layout, filter="data")
    copy = f"mkdir -p $APPTAINER_CACHEDIR/cache; cp -r {shlex.quote(str(layout))}"
    apptainer(tmp_path, monkeypatch, f"{copy} $APPTAINER_CACHEDIR/cache/blob; echo some; {end}")
    images = ApptainerImages(Store(tmp_path / "store"))
    lines: list[str] = []
    identifier = images.pull("example.org/x", on_output=lines.append)
    assert lines[0] == "some"
    assert [one.id for one in images.list()] == [identifier]
    source = images.source("example.org/x:latest")
    assert (source.env, source.workdir) == ({"A": "1"}, "/w")
    assert Path(source.files, "bin/sh").read_text() == "shell"
    assert not list((tmp_path / "store").glob(".new-*"))


def test_a_failed_pull_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apptainer(tmp_path, monkeypatch, 'echo "FATAL: connection refused" >&2; exit 255')
    with pytest.raises(ImagePullError, match="cannot be reached"):
        ApptainerImages(Store(tmp_path / "store")).pull("example.org/x", on_output=print)
