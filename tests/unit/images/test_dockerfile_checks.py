"""The ways from a Dockerfile to the machine that builds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images.dockerfile_bases import NamedImage, named_images
from hyperruntime.images.dockerfile_checks import (
    check_dockerfile,
    check_triggers,
    checked_dockerfile,
)
from hyperruntime.images.pull_errors import full_name

REFUSED = [
    "FROM dir:/etc\n",
    "FROM docker-archive:/a.tar\n",
    "from  --platform=linux/amd64 oci-archive:/a.tar AS x\n",
    "FROM containers-storage:x\n",
    "FROM docker-daemon:x:1\n",
    "FROM docker://x\n",
    "FROM /a\n",
    "ARG A=docker-archive\nFROM ${A}:/a.tar\n",
    "ARG B=dir:/etc\nFROM a\nARG B=x\nFROM $B\n",
    "ARG TARGETVARIANT=dir:/etc\nFROM $TARGETVARIANT\n",
    "FROM ${TARGETVARIANT:-dir:/etc}\n",
    "FROM ${TARGETVARIANT}docker-archive:a.tar\n",
    "FROM oci-${BUILDVARIANT}archive:a.tar\n",
    'ARG A=x\nARG A=dir:/etc"\nFROM ${A+dir:/etc}\n',
    "FROM a\nCOPY --from=$X / /x\n",
    "FROM a\nONBUILD COPY\t--from=dir:/etc / /x\n",
    "FROM a\nONBUILD ONBUILD copy --from=dir:/etc / /x\n",
    "FROM ${A:-docker-archive}:/a.tar\n",
    "FROM $GIVEN\n",
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
    with pytest.raises(
        SpecError, match=r"must be the name of an image|a mount |a backslash|a quote"
    ):
        check_dockerfile(text, tmp_path, {"GIVEN": "dir:/etc"})


TWO_WAYS = {
    "plain text without quotes": [
        'COPY --chown="0:0 " --from=dir:/etc / /x',
        "COPY --chown='0:0' / /x",
        "COPY --chown=0\\ --from=dir:/etc / /x",
        "COPY --chown=0:0\u00e0--from=dir:/etc / /x",
        "COPY --chown=0\u2003--from=dir:/etc / /x",
        'FROM --platform="a b" dir:/etc',
        'ONBUILD FROM --platform="a" a',
        'HEALTHCHECK --interval="5s" CMD x',
    ],
    "may not have": [
        'COPY --fr"om"=dir:/etc / /x',
        "COPY --fr\\om=dir:/etc / /x",
        'ADD --fr"om"=dir:/etc / /x',
        "ADD --from=a / /x",
        "COPY --$X / /x",
        "COPY --fr${E}om=dir:/etc / /x",
        "COPY --from dir:/etc / /x",
        "COPY --FROM=dir:/etc / /x",
        "COPY -- --from=dir:/etc / /x",
        "FROM --from=a a",
        "ONBUILD ADD --unknown=x / /x",
    ],
    "after the options": [
        "COPY --link a --from=dir:/etc / /x",
        "ADD --link \u00e0--from=dir:/etc / /x",
        "COPY a '--x' /",
    ],
    "must not follow the options": [
        "COPY --chown=0:0 \udc85--from=dir:/etc / /x",
        "RUN \udca0--mount=source=link,target=/x x",
    ],
    "no control characters": [
        "COPY --chown=0:0 \v--from=dir:/etc / /x",
        "RUN x \\\r\r\nFROM dir:/etc",
        "RUN x \\\v\nFROM dir:/etc",
        "RUN x \\\n\x1c\nFROM dir:/etc",
        "RUN x \\\n\x1c# y\nFROM dir:/etc",
        "RUN x \\\n\fFROM dir:/etc",
        "RUN a\rFROM dir:/etc",
    ],
    "must be an instruction": [
        "INCLUDE /etc/passwd",
        "ONBUILD # escape=`",
        "ONBUILD COPY\u00a0--from=dir:/etc / /x",
        "{}",
    ],
    "after the base, FROM may have only": [
        "FROM a b",
        "FROM a AS dir:/etc",
        "FROM a AS b c",
        "FROM a AS",
    ],
}


@pytest.mark.parametrize(
    ("why", "step"), [(why, step) for why, steps in TWO_WAYS.items() for step in steps]
)
def test_what_builders_read_in_different_ways_is_refused_with_its_line(
    tmp_path: Path, why: str, step: str
) -> None:
    with pytest.raises(SpecError, match=why) as caught:
        check_dockerfile(f"FROM a\n{step}\n", tmp_path, {})
    assert "line 2: " in str(caught.value) or "line 3: " in str(caught.value)


@pytest.mark.parametrize(
    "before",
    ["", "\ufeff", "\v", "# a\n\u2003", "#!/bin/x\n\n", "\ufeff# syntax=docker/dockerfile:1\n"],
)
@pytest.mark.parametrize(
    "directive",
    [
        "# escape=`",
        "#\fESCAPE = `",
        "# syntax=registry.invalid/evil",
        "#syntax\t= docker/dockerfile2",
    ],
)
def test_the_first_comments_cannot_change_how_the_file_is_read(
    tmp_path: Path, before: str, directive: str
) -> None:
    with pytest.raises(SpecError, match=r"escape character must be|syntax must be|no control"):
        check_dockerfile(f"{before}{directive}\nFROM a\n", tmp_path, {})


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("a:$V", "a:1"),
        ("a:${V}-slim AS b", "a:1-slim AS b"),
        ("--platform=$BUILDPLATFORM ${W:-a}", "--platform=$BUILDPLATFORM a"),
        ("${W:+x}a", "a"),
        ("a${EMPTY-b}", "a"),
        ("a${EMPTY:-b}", "ab"),
        ("a${EMPTY+b}", "ab"),
        ("'a'", "a"),
        ("$GIVEN", "given"),
        ("a:$LATER", "a:"),
        ("a:$V-$TARGETARCH", "a:1-${TARGETARCH}"),
    ],
)
def test_a_base_has_its_value_before_a_builder_reads_it(
    tmp_path: Path, base: str, expected: str
) -> None:
    """And the numbers of the other lines stay."""
    text = (
        f"ARG V=1 EMPTY=\nARG GIVEN=x\nFROM scratch\nARG LATER=1\nFROM \\\n# c\n  {base}\nRUN x\n"
    )
    if expected.endswith(":"):
        with pytest.raises(SpecError, match="must be the name of an image"):
            check_dockerfile(text, tmp_path, {"GIVEN": "given"})
        return
    found = check_dockerfile(text, tmp_path, {"GIVEN": "given"})
    assert found == text.replace(f"FROM \\\n# c\n  {base}\n", f"FROM {expected}\n\n\n")


@pytest.mark.parametrize(
    ("line", "full"),
    [
        ("FROM debian", "FROM docker.io/library/debian"),
        (
            "FROM nvidia/cuda:13.0.0-devel-ubuntu22.04",
            "FROM docker.io/nvidia/cuda:13.0.0-devel-ubuntu22.04",
        ),
        (
            "from --platform=linux/amd64 debian:12 AS x",
            "FROM --platform=linux/amd64 docker.io/library/debian:12 AS x",
        ),
        ("ARG TAG=12\nFROM debian:${TAG}", "ARG TAG=12\nFROM docker.io/library/debian:12"),
        ("ARG TAG\nFROM debian:$TAG", "ARG TAG\nFROM docker.io/library/debian:given"),
        ("ARG NONE\nFROM debian:${NONE:-12}", "ARG NONE\nFROM docker.io/library/debian:12"),
        ("ARG NONE=x\nFROM debian${NONE:+-slim}", "ARG NONE=x\nFROM docker.io/library/debian"),
        (
            'ARG A=1 TAG="12"\nFROM debian:${TAG:-x}',
            'ARG A=1 TAG="12"\nFROM docker.io/library/debian:12',
        ),
        ("FROM --platform=linux/arm64 a", "FROM --platform=linux/arm64 docker.io/library/a"),
        ("FROM a AS a\nFROM A", "FROM docker.io/library/a AS a\nFROM A"),
        ("FROM debian:$TARGETARCH", "FROM debian:$TARGETARCH"),
        ("FROM quay.io/a/b", "FROM quay.io/a/b"),
        ("FROM localhost:5000/a", "FROM localhost:5000/a"),
        ("FROM here:1", "FROM here:1"),
        ("FROM scratch", "FROM scratch"),
        (
            "FROM a AS B\nFROM b\nRUN <<E\nFROM b\nE",
            "FROM docker.io/library/a AS B\nFROM b\nRUN <<E\nFROM b\nE",
        ),
    ],
)
def test_base_images_get_a_registry(tmp_path: Path, line: str, full: str) -> None:
    given = {"NONE": "", **({"TAG": "given"} if "ARG TAG\n" in line else {})}

    def full_name_of(image: str) -> str:
        return image if image == "here:1" else full_name(image, "docker.io")

    assert check_dockerfile(f"{line}\n", tmp_path, given, full_name_of) == f"{full}\n"


def test_a_comment_does_not_stand_for_the_option_of_a_step(tmp_path: Path) -> None:
    flag = "--mount=type=cache,target=/a/b"
    found = check_dockerfile(
        f"FROM a\nRUN \\\n# {flag}\n{flag} <<EOF\nx\nEOF\nRUN y\n", tmp_path, {}
    )
    assert re.fullmatch(rf"FROM a\nRUN {flag},id=\w+ <<EOF\nx\nEOF\n\n\nRUN y\n", found)


@pytest.mark.parametrize("name", [".dockerignore", ".containerignore", "Dockerfile.dockerignore"])
def test_the_patterns_of_a_context_are_no_file_of_the_host(tmp_path: Path, name: str) -> None:
    """The classic builder of Docker copies the patterns into the context."""
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("ARG A=a\nFROM $A\n")
    (context / name).symlink_to("patterns")
    (context / "patterns").write_text("x\n")
    with checked_dockerfile(context / "Dockerfile", context, {}) as made:
        assert made.read_text() == "ARG A=a\nFROM a\n"
        beside = made.with_name(name)
        assert beside.exists() == (name == "Dockerfile.dockerignore")
    (context / "patterns").unlink()
    for hostile in ("/etc/passwd", "/dev/zero", name):
        (context / name).unlink()
        (context / name).symlink_to(hostile)
        with (
            pytest.raises(SpecError, match="a file of the build context"),
            checked_dockerfile(context / "Dockerfile", context, {}),
        ):
            pass


@pytest.mark.parametrize(
    ("triggers", "is_safe"),
    [
        (["RUN x", "COPY . /x", "COPY --chown=1 a /b"], True),
        (["COPY --from=dir:/etc / /x"], False),
        (["RUN <<EOF", "COPY --from=dir:/etc / /x", "EOF"], False),
        (["# escape=`"], False),
        (["RUN --mount=type=cache,target=/x y"], False),
        (["RUN --mount=type=bind,source=link,target=/x y"], False),
        (["?"], False),
    ],
)
def test_an_image_does_in_a_build_what_a_dockerfile_may_do(
    tmp_path: Path, triggers: list[str], is_safe: bool
) -> None:
    (tmp_path / "link").symlink_to("/etc")
    if is_safe:
        check_triggers("a", triggers, tmp_path)
        return
    with pytest.raises(SpecError, match=r"FROM a.*no trigger"):
        check_triggers("a", triggers, tmp_path)


def test_the_images_of_a_file_are_those_that_are_no_stages() -> None:
    copies = "COPY --from=b / /\nCOPY --from=0 / /\nONBUILD COPY --from=c / /\n"
    text = f"FROM --platform=linux/arm64 a AS b\nFROM scratch\n{copies}FROM b\n"
    assert list(named_images(text)) == [NamedImage("a", "linux/arm64"), NamedImage("c")]


@pytest.mark.parametrize(
    "option",
    ["--network=host", "--network", "--NETWORK=none", "--net\\work=host", "--security=insecure", "--device=/dev/sda",
     "--mount", "--unknown", "--"],
)  # fmt: skip
@pytest.mark.parametrize(
    "before", ["RUN ", "run --mount=target=/z,ro ", "ONBUILD RUN --network=none ", "RUN \\\n "]
)
def test_a_step_gets_nothing_more_of_this_machine(tmp_path: Path, before: str, option: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_dockerfile(f"FROM a\n{before}{option} true\n", tmp_path, {})
    assert (
        f"RUN may not have {option!r}; allowed are --mount=, --network=none and --network=default"
        in str(caught.value)
    )


@pytest.mark.parametrize(
    "text",
    [
        "# syntax=docker/dockerfile:1\nARG V=12\nFROM --platform=$BUILDPLATFORM a:12 AS "
        "build\nFROM build\n",
        "\t# c\n  from a as B\ncopy --link --chmod=755 --from=B x y\nADD --keep-git-dir=true x "
        '"a b" /y\nCMD ["--x"]\n',
        "FROM a-$TARGETARCH\nFROM scratch\nCOPY --from=0 --chown=1 /x /y\nCOPY "
        "--from=docker.io/library/a /x /y\n",
        "FROM ubuntu:22.04\nRUN --mount=type=bind,source=inside,target=/y --mount=target=/z,ro "
        "true\n",
        "FROM a\nRUN --mount=type=secret,id=x --mount=type=ssh --mount=type=tmpfs,target=/t "
        "true\nUSER x\n",
        "FROM a\nRUN --network=none x --network=host\nRUN --network=default --mount=type=ssh "
        "true\n",
        "FROM a\nRUN <<EOF\nFROM dir:/etc\nEOF\nRUN echo --mount=type=bind,from=x,source=/\n",
    ],
)
def test_an_ordinary_dockerfile_is_built_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "inside").symlink_to("real")
    assert check_dockerfile(text, tmp_path, {}) == text


def test_a_cache_is_no_path_below_another_cache(tmp_path: Path) -> None:
    """Podman takes the target as the directory of a cache: ``/a/b`` would be what a step put into
    the cache ``/a``.
    """
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
    with (
        pytest.raises(SpecError, match="cpp"),
        checked_dockerfile(tmp_path / "Dockerfile.in", tmp_path, {}),
    ):
        pass
