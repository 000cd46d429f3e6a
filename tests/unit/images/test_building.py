"""Containerfiles as lists of steps: words, ignore files, sources and stages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images.build_inputs import dockerfile_digest
from hyperruntime.images.building.context import Context
from hyperruntime.images.building.definition import copied_paths
from hyperruntime.images.building.ignore import Ignored, kept_files
from hyperruntime.images.building.read import PATH, Containerfile
from hyperruntime.images.building.sources import Found, find
from hyperruntime.images.building.steps import BuildMount, Copy, Run, Stage, Workdir
from hyperruntime.images.definition_file import Copied
from hyperruntime.images.dockerfile_checks import check_dockerfile
from hyperruntime.images.words import expand

PLATFORM = {"TARGETPLATFORM": "linux/amd64", "TARGETARCH": "amd64"}
VALUES = {"a": "one", "empty": "", "path": "/x/y.tar.gz"}


def stages(text: str, config: dict[str, Any] | None = None, **given: str) -> list[Stage]:
    """Return the stages of a Containerfile whose bases have one configuration."""
    file = Containerfile(text, given, PLATFORM)
    return [file.stage(number, config or {}) for number in file.parts]


def env(stage: Stage) -> dict[str, str]:
    """Return the variables of a stage."""
    return dict(one.split("=", 1) for one in stage.config["Env"])


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$a-${a}", "one-one"),
        ("${none:-d}${none-d}${empty:-d}${empty-d}", "ddd"),
        ("${a:+y}${empty:+y}${empty+y}${none+y}", "yy"),
        ("${a:?why}", "one"),
        ("${none:-${a:-${b}}}", "one"),
        ("'$a'\"$a\"\\$a", "$aone$a"),
        ('"a\\"b\\\\c\\d"', 'a"b\\c\\d'),
        ("a\\ b", "a b"),
        ("$", "$"),
        ("${path##*/}|${path%.*}|${path%%.*}|${path#/x}", "y.tar.gz|/x/y.tar|/x/y|/y.tar.gz"),
        ("${path/x/z}|${path//[a-y]/-}", "/z/y.tar.gz|/-/-.---.-z"),
        ("http://h/?a=b&c=(d)#e", "http://h/?a=b&c=(d)#e"),
    ],
)
def test_words_are_expanded_as_documented(text: str, expanded: str) -> None:
    assert expand(text, VALUES) == expanded


@pytest.mark.parametrize(
    "text", ["'a", '"a', "${a", "${}", "${a:x}", "${a!}", "${none:?}", "${empty:?}"]
)
def test_a_word_with_an_error_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        expand(text, VALUES)


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ("", "a a/b a/b/c.md d.md e"),
        ("*/b", "a d.md e"),
        ("a/b", "a d.md e"),
        ("/a", "d.md e"),
        ("*.md", "a a/b a/b/c.md e"),
        ("**/*.md", "a a/b e"),
        ("a\n!a/b/c.md", "a a/b a/b/c.md d.md e"),
        ("!a/b/c.md\na", "d.md e"),
        ("*\n!d.md", "d.md"),
        ("# a\n  e/  ", "a a/b a/b/c.md d.md"),
        ("**", ""),
        ("a/**", "a d.md e"),
        ("../x\n.", "a a/b a/b/c.md d.md e"),
        ("[d-e]*", "a a/b a/b/c.md"),
        ("?", "d.md"),
    ],
)
def test_an_ignore_file_leaves_out_what_is_documented(
    tmp_path: Path, patterns: str, left: str
) -> None:
    for name in ("a/b/c.md", "d.md", "e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert " ".join(kept_files(tmp_path, Ignored(patterns.split("\n")))) == left


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("*.txt", [Found(".x.txt", ".x.txt"), Found("a.txt", "a.txt")]),
        ("d?r/*", [Found(".dot", "dir/.dot"), Found("in", "dir/in")]),
        ("[^d]*", [Found(".x.txt", ".x.txt"), Found("a.txt", "a.txt"), Found("link", "dir"), Found("up", "a.txt")]),
        ("/link/in", [Found("in", "dir/in")]),
        ("up", [Found("up", "a.txt")]),
        ("../../a.txt", [Found("a.txt", "a.txt")]),
        (".", [Found("", "")]),
        ("none", []),
        ("no*", []),
    ],
)  # fmt: skip
def test_sources_are_found_below_their_root(
    tmp_path: Path, source: str, found: list[Found]
) -> None:
    (tmp_path / "dir").mkdir()
    for name in ("a.txt", ".x.txt", "dir/in", "dir/.dot"):
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "up").symlink_to("/../../a.txt")
    assert find(str(tmp_path), source, None) == found


def test_links_to_directories_above_multiply_no_patterns(tmp_path: Path) -> None:
    for index in range(30):
        (tmp_path / f"l{index}").symlink_to(".")
    source = "*/" * 12 + "x"
    (tmp_path / "Containerfile").write_text(f"FROM base\nCOPY {source} /x/\n")
    with pytest.raises(SpecError, match="at most 10000 directories"):
        find(str(tmp_path), source, None)
    with pytest.raises(SpecError, match="at most 10000 directories"):
        copied_paths(Copied(source=source), tmp_path)
    with pytest.raises(SpecError, match="at most 10000 directories"):
        dockerfile_digest(tmp_path / "Containerfile", tmp_path)


def test_arguments_have_the_scopes_that_are_documented() -> None:
    text = """ARG A=1 B=2
FROM base AS first
RUN one
ARG A
ARG B=3
ARG C
ARG TARGETARCH
ARG D=$A-$B
ENV D=env E=$D-$TARGETARCH
ARG E=late
RUN two
FROM first
RUN three
FROM base
COPY --from=1 / /x
RUN four
"""
    first, child, other = stages(text, B="given")
    one, two = (step for step in first.steps if isinstance(step, Run))
    assert one.env == {"PATH": PATH}
    known = {"A": "1", "B": "given", "TARGETARCH": "amd64", "D": "env", "E": "1-given-amd64"}
    assert two.env == {"PATH": PATH, **known}
    # these bases have no configuration here, which a variable of the same name would come from
    inherited = {**known, "D": "1-given", "E": "late"}
    assert child.steps[0].env == {"PATH": PATH, **inherited}  # type: ignore[attr-defined]
    assert other.steps[1].env == {"PATH": PATH}  # type: ignore[attr-defined]


def test_variables_of_an_instruction_are_those_before_it() -> None:
    (stage,) = stages("FROM x\nENV a=1 b=old\nENV a=2 b=$a\nENV c some  'text' $b\n")
    assert env(stage) == {"PATH": PATH, "a": "2", "b": "1", "c": "some  text 1"}


def test_commands_have_their_shell_and_configuration() -> None:
    text = """FROM x
SHELL ["/bin/bash", "-c"]
WORKDIR /a
WORKDIR b/../c
USER $U
RUN --network=none --mount=type=cache,target=k,id=n --mount=type=bind,source=s,target=/t,ro x y
RUN ["x", "y"]
ENTRYPOINT e
CMD ["c"]
ENTRYPOINT ["f"]
EXPOSE 80 90-91/UDP 127.0.0.1:8:81
VOLUME /v /w
STOPSIGNAL 9
HEALTHCHECK --interval=1m30s CMD\t["t"]
ONBUILD RUN later
LABEL "c d"='e f' a=b
"""
    (stage,) = stages(text, {"Cmd": ["old"], "User": "u", "Env": ["U=v"]})
    assert [step for step in stage.steps if isinstance(step, Workdir)] == [
        Workdir(line=3, text="WORKDIR /a", path="/a", user="u"),
        Workdir(line=4, text="WORKDIR b/../c", path="/a/c", user="u"),
    ]
    one, two = (step for step in stage.steps if isinstance(step, Run))
    assert one.args == ("/bin/bash", "-c", "x y")
    assert (one.network, one.user, one.workdir) == (False, "v", "/a/c")
    assert one.mounts == (
        BuildMount(kind="cache", target="/a/c/k", source="n", read_only=False),
        BuildMount(kind="bind", target="/t", source="s"),
    )
    assert two.args == ("x", "y")
    assert {name: value for name, value in stage.config.items() if name != "Env"} == {
        "Cmd": ["c"],
        "Entrypoint": ["f"],
        "ExposedPorts": {"80/tcp": {}, "90/udp": {}, "91/udp": {}, "81/tcp": {}},
        "Healthcheck": {"Interval": 90_000_000_000, "Test": ["CMD", "t"]},
        "Labels": {"a": "b", "c d": "e f"},
        "OnBuild": ["RUN later"],
        "Shell": ["/bin/bash", "-c"],
        "StopSignal": "9",
        "User": "v",
        "Volumes": {"/v": {}, "/w": {}},
        "WorkingDir": "/a/c",
    }


def test_an_entrypoint_ends_the_command_of_the_base() -> None:
    (stage,) = stages("FROM x\nENTRYPOINT e\n", {"Cmd": ["old"]})
    assert (stage.config["Cmd"], stage.config["Entrypoint"]) == ([], ["/bin/sh", "-c", "e"])


def test_here_documents_are_commands_programs_and_files() -> None:
    text = """FROM x
ENV A=1
RUN <<EOF
a $A
EOF
RUN <<-"EOF"
\t#!/bin/x
\tEOF
RUN <<"EOF"
#!/bin/x
EOF
RUN cat <<A > f && cat <<B
a
A
b
B
COPY <<one <<"two" three /t/
1 $A '$A'
one
2 $A
two
"""
    (stage,) = stages(text)
    runs = [(step.args[-1], step.script) for step in stage.steps if isinstance(step, Run)]
    assert runs == [
        ("a $A\n", ""),
        ("#!/bin/x\n", ""),
        ("#!/bin/x\n", "#!/bin/x\n"),
        ("cat <<A > f && cat <<B\na\nA\nb\nB", ""),
    ]
    copy = stage.steps[-1]
    assert isinstance(copy, Copy)
    assert copy.texts == (("one", "1 1 '1'\n"), ("two", "2 $A\n"))
    assert (copy.sources, copy.target) == (("three",), "/t/")


def test_only_the_stages_that_the_last_one_needs_are_built() -> None:
    text = """FROM a AS one
FROM b AS two
FROM c AS three
COPY --from=1 /x /y
FROM one
COPY --from=three --link=true --chmod=u+x --chown=$U /x y
COPY --from=image /x ./
"""
    file = Containerfile(text, {}, PLATFORM)
    assert list(file.parts) == [0, 1, 2, 3]
    assert list(Containerfile(text.replace("=three", "=other"), {}, PLATFORM).parts) == [0, 3]
    first, second = file.stage(3, {"Env": ["U=7"], "WorkingDir": "/w"}).steps
    assert isinstance(first, Copy)
    assert isinstance(second, Copy)
    assert (first.origin, first.link, first.chmod, first.chown) == (2, True, "u+x", "7")
    assert (first.target, second.target, second.origin) == ("/w/y", "/w/", "image")


def test_triggers_of_the_base_come_first() -> None:
    file = Containerfile("FROM x\nRUN own\n", {}, PLATFORM)
    stage = file.stage(0, {"OnBuild": ["RUN trigger"]}, "RUN trigger")
    assert [step.text for step in stage.steps] == ["RUN trigger", "RUN own"]
    assert "OnBuild" not in stage.config


@pytest.mark.parametrize(
    "line",
    [
        "ADD https://h/x /x",
        "ADD git@h:x.git /x",
        "COPY a b c",
        "COPY a",
        "COPY --exclude=x a b",
        "COPY --parents a b",
        "COPY --chmod=zz a b",
        "COPY --from=4 a b",
        "ENV A",
        "ENV A='b",
        "EXPOSE x",
        "EXPOSE 1:2:3:4",
        "EXPOSE 65536",
        "EXPOSE 1-99999999999",
        "FROM 1",
        "FROM 9 AS late",
        "HEALTHCHECK what",
        "HEALTHCHECK --every=2s CMD x",
        "ONBUILD",
        "ONBUILD ONBUILD RUN x",
        "RUN",
        "RUN --mount=type=secret,id=x,required y",
        "RUN --mount=type=cache,target=/x,uid=me y",
        "RUN --mount=type=bind,source=x y",
        "RUN --mount=type=cache,target=/x,mode=9 y",
        "SHELL /bin/sh",
        "WORKDIR ${A:?}",
    ],
)
def test_what_is_not_built_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(SpecError, match="line 2: "):
        stages(f"FROM x\n{line}\n")


@pytest.mark.parametrize(
    "fields",
    ["source=.,Source=../up,source=.", "source=.,src=../up", "target=/a,TARGET=/b", "ro,readonly"],
)
def test_a_mount_names_each_field_once(tmp_path: Path, fields: str) -> None:
    text = f"FROM x\nRUN --mount=type=bind,{fields},dst=/m true\n"
    with pytest.raises(SpecError, match="each field once"):
        check_dockerfile(text, tmp_path, {})


def test_the_last_of_equal_fields_of_a_mount_counts_in_any_case() -> None:
    (stage,) = stages("FROM x\nRUN --mount=source=.,Source=up,source=in,target=/m true\n")
    assert stage.steps[0].mounts[0].source == "in"  # type: ignore[attr-defined]


def test_a_secret_or_an_agent_that_is_not_required_is_not_mounted() -> None:
    text = """FROM x
RUN --mount=type=secret,id=key,required=false --mount=type=ssh \\
    --mount=type=cache,target=/kept,uid=7,gid=08 true
"""
    (stage,) = stages(text)
    assert isinstance(stage.steps[0], Run)
    assert stage.steps[0].mounts == (
        BuildMount(kind="cache", target="/kept", read_only=False, owner="7:8"),
    )


def test_an_empty_variable_as_user_is_root() -> None:
    (stage,) = stages("FROM x\nUSER $NONE\nRUN true\n", {"User": "u"})
    assert stage.config["User"] == ""


@pytest.mark.parametrize(
    "name", ["$TARGETPLATFORM", "linux", "amd64", "linux/x86_64", "Linux/amd64/v2"]
)
def test_this_platform_has_several_names(name: str) -> None:
    assert stages(f"FROM --platform={name} x\n")


def test_another_platform_is_refused() -> None:
    with pytest.raises(SpecError, match=r"line 1: .*linux/s390x"):
        stages("FROM --platform=linux/s390x x\n")
    text = "FROM x AS for-amd64\nFROM --platform=arm64 x AS for-arm64\nFROM for-$TARGETARCH\n"
    assert len(stages(text)) == 2  # the other one is not built


def test_the_digest_of_sources_changes_with_what_they_mean(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    for name in ("dir/a", "b", "left-out"):
        (tmp_path / name).write_text("1")
    (tmp_path / "Containerfile.dockerignore").write_text("left-out\n*Containerfile*\n")

    def digest(*sources: str) -> str:
        return Context(tmp_path, tmp_path / "Containerfile").digest(sources)

    seen = {digest("."), digest("dir"), digest("b"), digest("dir", "b")}
    (tmp_path / "left-out").write_text("2")
    os.utime(tmp_path / "b")
    assert digest(".") in seen
    (tmp_path / "dir/a").chmod(0o600)
    seen |= {digest("."), digest("dir")}
    (tmp_path / "dir/a").write_text("2")
    seen |= {digest("."), digest("dir")}
    assert len(seen) == 8


def test_the_target_of_a_link_ends_in_the_digest(tmp_path: Path) -> None:
    digests = set()
    for name, target, after in (("one", "x", "yb"), ("two", "xy", "b")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a").symlink_to(target)
        (folder / after).write_text("")
        digests.add(Context(folder, folder / "Containerfile").digest(["."]))
    assert len(digests) == 2
