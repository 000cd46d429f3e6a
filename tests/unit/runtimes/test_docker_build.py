"""Builds by Docker: which builder, its output, and build contexts with files from elsewhere."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hyperruntime.errors import ImageBuildError
from hyperruntime.images.build_log import BuildLog
from hyperruntime_docker.build import (
    CONTAINERFILE,
    buildkit_args,
    context_tar,
    has_buildkit,
    plain_line,
    tar_of_root,
)

# As `docker buildx build --progress plain` writes it.
PROGRESS = """\
#0 building with "default" instance using docker driver

#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 123B done
#1 DONE 0.0s

#4 [1/3] FROM localhost/base:latest
#4 CACHED

#5 [stage-0 2/3] RUN echo fine
#5 0.214 fine
#5 DONE 0.3s

#6 [stage-0 3/3] RUN <<EOF (seq 2...)
#6 0.201 the first
#6 10.302 the reason
#6 ERROR: process "/bin/sh -c seq 2" did not complete successfully: exit code: 9
------
 > [stage-0 3/3] RUN <<EOF (seq 2...):
0.201 the first
10.302 the reason
------

 1 warning found (use docker --debug to expand):
 - UndefinedVar: Usage of undefined variable '$1' (line 6)
Dockerfile:3
--------------------
   1 |     FROM base
   2 |     RUN echo fine
   3 | >>> RUN <<EOF
   4 | >>> seq 2
   5 | >>> EOF
   6 |     RUN echo "$1"
--------------------
ERROR: failed to build: failed to solve: process "/bin/sh -c seq 2" did not complete successfully: exit code: 9
"""


def test_the_failed_step_and_its_output_are_found_in_the_output_of_buildkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lines: list[str] = []
    with BuildLog("x", lines.append) as log:
        for line in PROGRESS.splitlines():
            log(plain_line(line))
        message = str(log.failure("x", ImageBuildError("failed")))
    assert {"STEP 2/3: RUN echo fine", "fine", "the reason"} <= set(lines)
    assert "the step `RUN <<EOF (seq 2...)` failed" in message
    assert "    the reason\n" in message
    assert "fine" not in message


@pytest.mark.parametrize(
    ("version", "exit_code", "found"),
    [
        ("28.5.2+dfsg4", 0, True),
        ("23.0.0", 0, True),
        ("20.10.24", 0, False),
        ("28.5.2", 1, False),
        ("dev", 0, False),
    ],
)
def test_buildkit_is_used_by_new_daemons_and_the_buildx_component(
    version: str, exit_code: int, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\n[ "$*" = "buildx version" ] && exit {exit_code}\nexit 7\n'
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_buildkit(version) is found
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert not has_buildkit(version)


def test_a_build_by_buildkit_uses_the_builder_of_the_daemon() -> None:
    args = buildkit_args(Path("/c"), "x:1", Path("/f"), {"A": "1 2"}, force=True)
    assert args[:5] == ["docker", "buildx", "build", "--builder", "default"]
    assert args[-7:] == ["/f", "--tag", "x:1", "--no-cache", "--build-arg", "A=1 2", "/c"]
    assert "--no-cache" not in buildkit_args(Path("/c"), "x:1", Path("/f"), {}, force=False)


def test_a_context_has_what_is_not_ignored_and_a_containerfile_that_no_step_copies(
    tmp_path: Path,
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    for name in ("kept", "secret"):
        (context / name).write_text(name)
    (tmp_path / "Dockerfile").write_text("FROM a\n")
    for rules, left_out in (
        ("# all\n*\n\n!kept\n", CONTAINERFILE),
        (None, f".dockerignore\n{CONTAINERFILE}"),
    ):
        if rules:
            (context / ".dockerignore").write_text(rules)
        else:
            (context / ".dockerignore").unlink()
        with (
            context_tar(context, tmp_path / "Dockerfile") as made,
            tarfile.open(fileobj=made) as tar,
        ):
            names = set(tar.getnames())
            ignore = tar.extractfile(".dockerignore")
            assert ignore is not None
            assert ignore.read().decode().strip().endswith(left_out)
        assert {"kept", CONTAINERFILE} <= names
        assert ("secret" in names) is (rules is None)


def test_files_from_elsewhere_belong_to_root_and_keep_their_modes(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "EOF").touch(0o750)
    with tarfile.open(fileobj=io.BytesIO(tar_of_root(tmp_path))) as tar:
        member = tar.getmember("./0/EOF")
    assert (member.uid, member.uname, member.mode & 0o777) == (0, "", 0o750)
