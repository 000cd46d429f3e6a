"""The ways from a Dockerfile to the machine that builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images.dockerfile_checks import check_dockerfile, checked_dockerfile

REFUSED = [
    "FROM dir:/etc\n",
    "FROM docker-archive:/a.tar\n",
    "from  --platform=linux/amd64 oci-archive:/a.tar AS x\n",
    "FROM containers-storage:x\n",
    "FROM docker-daemon:x:1\n",
    "FROM docker://x\n",
    "FROM /a\n",
    "ARG A=docker-archive\nFROM ${A}:/a.tar\n",
    "ARG B=x\nFROM a\nARG B=dir:/etc\nFROM $B\n",
    "FROM ${A:-docker-archive}:/a.tar\n",
    "FROM $GIVEN\n",
    "FROM a AS dir:/etc\nCOPY --from=dir:/etc / /x\n",
    "FROM a\nCOPY --from=docker-archive:/a.tar / /x\n",
    "FROM a\nONBUILD COPY --from=docker-archive:/a.tar / /x\n",
    "# escape=`\nFROM a\nRUN x \\\nFROM dir:/etc\n",
    "FROM a AS b\nRUN --mount=type=bind,from=b,source=/x,target=/y,rw true\n",
    "FROM a\nRUN --mount=source=link,target=/y true\n",
    "FROM a\nRUN --mount=target=/y,source=../.. true\n",
    "FROM a\nRUN --mount=type=bind,target=/y,rw true\n",
    "FROM a\nRUN --mount=type=bind,target=/y,readonly=false true\n",
    "FROM a\nRUN --mount=type=bind,target=/y,bind-propagation=shared true\n",
    "FROM a\nRUN \\\n  --mount=type=cache,from=b,target=/y true\n",
    "FROM a\nRUN --mount=type=cache,source=../../x,target=/y true\n",
    "FROM a\nRUN --mount=type=bind,source=$X,target=/y true\n",
    "FROM a\nRUN --network=none --mount=type=what true\n",
    "FROM a\nONBUILD RUN --mount=source=link,target=/y true\n",
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_dockerfile_cannot_read_the_host(tmp_path: Path, text: str) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(SpecError, match=r"must be the name of an image|a mount |a backslash"):
        check_dockerfile(text, tmp_path, {"GIVEN": "dir:/etc"})


@pytest.mark.parametrize(
    "option",
    ["--network=host", "--network", "--NETWORK=none", "--net\\work=host", "--security=insecure", "--device=/dev/sda",
     "--mount", "--unknown", "--"],
)  # fmt: skip
@pytest.mark.parametrize("before", ["RUN ", "run --mount=target=/z,ro ", "ONBUILD RUN --network=none ", "RUN \\\n "])
def test_a_step_gets_nothing_more_of_this_machine(tmp_path: Path, before: str, option: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_dockerfile(f"FROM a\n{before}{option} true\n", tmp_path, {})
    assert f"RUN may not have {option!r}; allowed are --mount=, --network=none and --network=default" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "text",
    [
        "# syntax=docker/dockerfile:1\nARG V=12\nFROM --platform=$BUILDPLATFORM a:${V}-slim AS build\nFROM build\n",
        "FROM a-$TARGETARCH\nFROM scratch\nCOPY --from=0 --chown=1 /x /y\nCOPY --from=docker.io/library/a /x /y\n",
        "FROM ${A:-ubuntu:22.04}\nRUN --mount=type=bind,source=inside,target=/y --mount=target=/z,ro true\n",
        "FROM a\nRUN --mount=type=secret,id=x --mount=type=ssh --mount=type=tmpfs,target=/t true\nUSER x\n",
        "FROM a\nRUN --network=none x --network=host\nRUN --network=default --mount=type=ssh true\n",
        "FROM a\nRUN <<EOF\nFROM dir:/etc\nEOF\nRUN echo --mount=type=bind,from=x,source=/\n",
    ],
)
def test_an_ordinary_dockerfile_is_built_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "inside").symlink_to("real")
    assert check_dockerfile(text, tmp_path, {}) == text


def test_a_cache_is_no_path_below_another_cache(tmp_path: Path) -> None:
    """Podman takes the target as the directory of a cache: ``/a/b`` would be what a step put into the cache ``/a``."""
    lines = [
        "RUN --mount=type=cache,target=/a,sharing=locked x",
        "RUN --mount=target=/a/b,type=cache x",
        "RUN --mount=type=cache,id=../../x,target=/a x",
    ]
    found = check_dockerfile("\n".join(["FROM a", *lines]), tmp_path, {}).split("\n")[1:]
    ids = [line.partition(",id=")[2].split()[0] for line in found]
    assert all(each.isalnum() for each in ids)
    assert len(set(ids)) == len(lines)
    assert found[0].startswith("RUN --mount=type=cache,target=/a,sharing=locked,id=")


def test_podman_runs_no_preprocessor_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile.in").write_text("FROM a\n")
    with pytest.raises(SpecError, match="cpp"), checked_dockerfile(tmp_path / "Dockerfile.in", tmp_path, {}):
        pass
