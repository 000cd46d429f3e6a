"""The definition files that are made from Containerfiles, tested without Podman and Docker."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import SpecError
from hyperruntime.host.process import run_process
from hyperruntime.images.containerfile_to_definition import definition_of
from hyperruntime.images.definition_file import fill_placeholders, parse_definition

_WORKDIRS = {"based": "/of/base"}


def made(tmp_path: Path, text: str, **arguments: str) -> str:
    """Return the definition file that is made from a Containerfile."""
    (tmp_path / "Containerfile").write_text(text)
    with definition_of(
        tmp_path / "Containerfile", tmp_path, arguments, lambda name: _WORKDIRS.get(name, "/")
    ) as found:
        return fill_placeholders(found.path.read_text(), found.build_args)


def test_steps_run_in_order_with_their_shell_directory_and_variables(tmp_path: Path) -> None:
    """A shell runs %post on the host; all its paths are below a directory of the test."""
    inside = tmp_path / "in side"
    text = f"""# a comment
ARG TAG=1
FROM here:$TAG AS only
ARG WORD="of the build"
ENV ONE=1 TWO="two words" THREE=$ONE
ENV OLD old form
ENV "QUOTED"="name"
WORKDIR "{inside}"
RUN echo "$TWO $THREE $WORD" > a && [ $QUOTED = name ] && \\
    # in between
    echo '{{{{ WORD }}}} %s' >> a
WORKDIR deeper
SHELL ["/bin/bash", "-c"]
RUN [[ $OLD == "old form" ]] && echo yes > b
RUN ["/bin/sh", "-c", "printf '%s' \\"$PWD\\" > c"]
CMD ["sleep"]
EXPOSE 80
LABEL who="me and you" of.word=$WORD braces={{{{x}}}} price=\\$5
LABEL old  form of  $TWO
"""
    definition = parse_definition(made(tmp_path, text, WORD="given"))
    assert (definition.bootstrap, definition.base) == ("localimage", "here:1")
    post = definition.post.text.replace("rm -rf /.hyperruntime-build", "")
    env = {"PATH": os.environ["PATH"], "APPTAINER_LABELS": str(tmp_path / "labels")}
    result = run_process(["/bin/sh", "-ex", "-c", post], env=env)
    assert result.exit_code == 0, result.stderr
    assert (inside / "a").read_text() == "two words 1 given\n{{ WORD }} %s\n"
    assert (inside / "deeper" / "b").read_text() == "yes\n"
    assert (inside / "deeper" / "c").read_text() == str(inside / "deeper")
    assert (tmp_path / "labels").read_text().splitlines() == [
        "who me and you",
        "of.word given",
        "braces {{x}}",
        "price $5",
        "old form of  two words",
    ]
    environment = run_process(
        ["/bin/sh", "-c", f"{definition.environment}\necho $OLD-$THREE"], env={}
    ).stdout
    assert environment == b"old form-1\n"


def test_the_last_stage_begins_with_the_stages_that_it_names(tmp_path: Path) -> None:
    """Their variables and directory stay, their arguments end; other stages are not built."""
    text = f"""ARG OF=based
FROM other AS unused
USER ann
FROM ${{OF}} AS First
ARG ONE=1
ENV TWO=2$ONE
WORKDIR "{tmp_path}/$TWO"
FROM first
WORKDIR sub
RUN echo "[$ONE$TWO]" > seen
"""
    definition = parse_definition(made(tmp_path, text))
    assert definition.base == "based"
    post = definition.post.text.replace("rm -rf /.hyperruntime-build", "").replace(
        "/of/base", str(tmp_path)
    )
    assert (
        run_process(["/bin/sh", "-ex", "-c", post], env={"PATH": os.environ["PATH"]}).exit_code == 0
    )
    assert (tmp_path / "21" / "sub" / "seen").read_text() == "[21]\n"


def test_the_working_directory_of_the_base_is_where_steps_begin(tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text("FROM based\nWORKDIR sub\n")
    with definition_of(tmp_path / "Containerfile", tmp_path, {}, lambda name: "/of/base") as found:
        assert found.workdir == "/of/base/sub"


def test_no_file_outside_of_the_context_is_copied_by_the_names_of_translated_files(
    tmp_path: Path,
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "a").touch()
    for name in (".hyperruntime-files", ".hyperruntime-heredocs", ".hyperruntime-*"):
        with pytest.raises(SpecError, match=r"does not exist|must be in"):
            made(
                context,
                "FROM x\nCOPY --link a /a\nCOPY <<E /e\nE\nCOPY "
                f"{name}/../../../../../../etc/passwd /x\n",
            )


def test_a_given_argument_counts_in_the_defaults_after_it(tmp_path: Path) -> None:
    assert 'export B="img-2"' in made(tmp_path, "ARG A=1\nARG B=img-$A\nFROM x\nARG B\n", A="2")


def test_a_given_argument_names_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text(
        "FROM based\nARG SUB=x\nARG V\nWORKDIR a-$SUB/$V-b\nRUN pwd > seen\n"
    )
    given = {"SUB": "of me/{{x}}", "V": "1"}
    with definition_of(
        tmp_path / "Containerfile", tmp_path, given, lambda name: str(tmp_path / "base")
    ) as found:
        post = parse_definition(found.path.read_text(), found.build_args).post.text.replace(
            "rm -rf", ": "
        )
        assert found.workdir == f"{tmp_path}/base/a-of me/{{{{x}}}}/1-b"
    assert run_process(["/bin/sh", "-ec", post], env={"PATH": os.environ["PATH"]}).exit_code == 0
    assert (Path(found.workdir) / "seen").read_text() == f"{found.workdir}\n"


def test_a_failed_step_ends_the_build(tmp_path: Path) -> None:
    """No later step runs."""
    post = parse_definition(made(tmp_path, "FROM x\nWORKDIR /\nRUN false\nRUN true\n")).post.text
    assert (
        run_process(
            ["/bin/sh", "-e", "-c", post.replace("rm -rf", ": ")], env={"PATH": "/bin"}
        ).exit_code
        == 1
    )


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("COPY a.txt /x/", ["mkdir -p /x", "cp -p W/1/a.txt /x/"]),
        (
            "COPY a.txt b.txt /x",
            ["mkdir -p /x", "cp -p W/1/a.txt /x/", "mkdir -p /x", "cp -p W/2/b.txt /x/"],
        ),
        ("COPY a.txt new", ["mkdir -p /app", "cp -p W/1/a.txt /app/new"]),
        (
            "COPY tree /x",
            ["mkdir -p /x", "m=$(stat -c %a /x) && cp -RPp W/1/tree/. /x/ && chmod $m /x"],
        ),
        (
            'COPY --chmod=755 ["with blank.txt", "."]',
            [
                "(umask 0; chmod -R 755 'W/1/with blank.txt')",
                "mkdir -p /app",
                "cp -p 'W/1/with blank.txt' /app/",
            ],
        ),
        ("ADD *.md /x/", ["mkdir -p /x", "cp -p W/1/c.md /x/"]),
    ],
)
def test_copies_have_the_targets_of_the_containerfile(
    tmp_path: Path, line: str, done: list[str]
) -> None:
    """A directory is copied by its content; several sources need a directory as the target."""
    (tmp_path / "tree").mkdir()
    for name in ("a.txt", "b.txt", "c.md", "with blank.txt", "tree/d"):
        (tmp_path / name).write_text(name)
    post = parse_definition(made(tmp_path, f"FROM x\nWORKDIR /app\n{line}\n")).post.text
    lines = [text.strip().replace("/.hyperruntime-build", "W") for text in post.splitlines()]
    assert [text for text in lines if text and text != "rm -rf W"][3:] == done


@pytest.mark.parametrize(
    "text",
    [
        "FROM a\nFROM b\nUSER ann\n", "FROM scratch\n", "RUN x\n", "FROM a\nUSER ann\n", "FROM a\nCOPY --from=b c d\n",
        "FROM a\nADD http://x/y /z\n", "FROM a\nADD x.tar.gz /z\n", "FROM a\nRUN --mount=type=cache x\n",
        "FROM a\nRUN --x <<E\nE\n",
        "FROM a\nCOPY ../x y\n", "FROM a\nONBUILD RUN x\n", "FROM a\nENV A=${B#x}\n",
        "FROM a\nENV A='x\n", "FROM a\nENV A\n", "FROM a\nENV A;x=1\n", "FROM a\nARG $(x)=1\n",
        "FROM a\nLABEL a\n", "FROM a\nLABEL $A=c\n", "FROM a\nLABEL x=1 #y=2\n", "FROM a\nLABEL 'a b'=c\n",
        "", "FROM a\nCOPY missing /x\n", "FROM a\nWORKDIR $HOME\n", "FROM a\nCOPY outside /x\n",
    ],
)  # fmt: skip
def test_instructions_that_would_behave_differently_are_rejected(tmp_path: Path, text: str) -> None:
    """The error names an alternative, such as Podman or Docker."""
    context = tmp_path / "context"
    context.mkdir()
    (tmp_path / "x").write_text("secret")
    (context / "outside").symlink_to(tmp_path / "x")
    with pytest.raises(SpecError, match=r"Podman or Docker|source|variable|quote"):
        made(context, text)


@given(st.text())
def test_any_text_gives_a_definition_or_a_spec_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    with suppress(SpecError):
        parse_definition(made(tmp_path_factory.mktemp("any"), f"FROM a\n{text}"))


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_bytes(b"FROM a\nRUN echo \xff\n")
    with (
        pytest.raises(SpecError, match="UTF-8"),
        definition_of(tmp_path / "Containerfile", tmp_path, {}, lambda name: "/"),
    ):
        pass
