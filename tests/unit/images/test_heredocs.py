"""Here-documents of Dockerfiles: what BuildKit reads, and the same without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyperruntime.errors import SpecError
from hyperruntime.host.process import run_process
from hyperruntime.images.dockerfile import Heredoc, parse_dockerfile, parse_heredoc
from hyperruntime.images.older_builders import for_older_builder, translate

SHELLS = [[path] for name in ("dash", "bash") if (path := shutil.which(name))]
SHELLS += [[path, "sh"] for path in [shutil.which("busybox")] if path]
LINES = st.lists(
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])), max_size=5
)
# What makes the parser do something.
ODD = st.text(st.sampled_from("<<<--'\"\\ \t\n#EOF$(){}ARUNCOPYx01=:+/"), max_size=60)


def heredocs(text: str) -> list[tuple[str, str, bool]]:
    """Return the name, text and expansion of each here-document."""
    return [
        (each.name, each.text, each.expands)
        for line in parse_dockerfile(text)
        for each in line.heredocs
    ]


@pytest.mark.parametrize(
    ("word", "name", "expands", "strips_tabs"),
    [
        ("<<EOF", "EOF", True, False),
        ("<<'EOF'", "EOF", False, False),
        ('<<"EOF"', "EOF", False, False),
        ("<<-EOF", "EOF", True, True),
        ('<<-"EOF"', "EOF", False, True),
        ('<<EO"F"', "EOF", False, False),
        ("<< EOF", "EOF", True, False),
        ("<<- EOF", "EOF", True, True),
        ("<< -EOF", "-EOF", True, False),
        ("3<<EOF", "EOF", True, False),
        ("<<eo\\'f", "eo'f", True, False),
        ("<<'e'o\\'f", "eo'f", False, False),
        ("<<'one two'", "one two", False, False),
        ("<<$EOF", "$EOF", True, False),
        ("<<file.txt", "file.txt", True, False),
    ],
)
def test_a_word_begins_a_here_document(
    word: str, name: str, expands: bool, strips_tabs: bool
) -> None:
    """The forms that BuildKit's own tests list."""
    expected = Heredoc(name=name, expands=expands, strips_tabs=strips_tabs)
    assert parse_heredoc(word) == expected
    body = f"{name}2\n{name}\n"
    assert heredocs(f"FROM a\nRUN {word}\n{body}RUN x\n") == [(name, f"{name}2\n", expands)]


@pytest.mark.parametrize(
    "line",
    [
        'RUN "<<EOF"', "RUN '<<EOF'", 'RUN ["<<EOF"]', "USER <<EOF", "RUN cat <<<EOF", "RUN cat<<EOF", "RUN <<",
        "RUN <<-", "RUN <<'EOF", "RUN echo $((1 << 20))", "RUN echo $((1<<20))", "# RUN <<EOF", "RUN <<''",
        "RUN a \\\n# <<EOF\n b",
    ],
)  # fmt: skip
def test_other_uses_of_the_sign_begin_none(line: str, tmp_path: Path) -> None:
    text = f"FROM a\n{line}\nRUN x\n"
    assert heredocs(text) == []
    assert translate(text, tmp_path, {}, "") == text


def test_bodies_follow_in_order_and_hide_everything_in_them() -> None:
    text = "FROM a\nCOPY <<X <<Y /dest/\nY\nRUN <<Z\nX\n# X\nX\\\nY\n"
    text += "RUN --mount=type=cache,target=/f \\\n <<-E\n\t\ta\n\tE\n"
    assert heredocs(text) == [
        ("X", "Y\nRUN <<Z\n", True),
        ("Y", "# X\nX\\\n", True),
        ("E", "a\n", True),
    ]
    instructions = [line for line in parse_dockerfile(text) if line.name]
    assert [(line.line, line.name) for line in instructions] == [
        (1, "FROM"),
        (2, "COPY"),
        (9, "RUN"),
    ]
    assert instructions[2].rest == "--mount=type=cache,target=/f  <<-E"


@given(ODD)
@example("RUN <<E\\\n\nE")
def test_any_text_is_read_completely_or_refused(text: str) -> None:
    try:
        found = list(parse_dockerfile(text))
    except SpecError:
        return
    assert "".join(line.source for line in found) == text


@given(LINES, st.sampled_from(["EOF", "-EOF", "file.txt", "a'b"]), st.booleans())
def test_the_text_of_a_here_document_is_kept(lines: list[str], name: str, strips: bool) -> None:
    """Whatever the lines are: comments, continued lines, instructions, other delimiters."""
    lines = [line for line in lines if line.rstrip("\r").lstrip("\t") != name]
    word = "".join(f"\\{letter}" for letter in name)
    text = f"FROM a\nRUN cat <<{'-' if strips else ''}'x' <<{word}\nx\n" + "".join(
        f"{line}\n" for line in lines
    )
    found = [line for line in parse_dockerfile(f"{text}{name}\nRUN after\n") if line.name]
    assert found[1].heredocs[1].content == "".join(f"{line}\n" for line in lines)
    assert found[2].rest == "after"


def translated(tmp_path: Path, text: str, **build_args: str) -> list[str]:
    payload = tmp_path / "files"
    payload.mkdir(exist_ok=True)
    lines = translate(text, payload, build_args, "FILES/").splitlines()
    assert all("<<" not in line or line.startswith("RUN eval ") for line in lines)
    return lines


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: Path(shell[0]).name)
def test_steps_do_what_their_here_documents_say(shell: list[str], tmp_path: Path) -> None:
    """The steps of the Dockerfile reference, of BuildKit's tests, and of a public agent
    repository.
    """
    text = """FROM a
RUN <<EOT sh
  set -ex
  echo one > one
EOT
RUN <<EOT
  mkdir -p foo/bar
  printf '%s\\n' "100% 'q' $name \\\\" > foo/bar/two
EOT
RUN <<EOT
#!/usr/bin/env python3
print("hello\\tworld", file=open("three", "w"))
EOT
RUN <<FILE1 cat > file1 && <<FILE2 cat > file2
I am $name
FILE1
I am
second
FILE2
RUN cat > fix.sh <<'BASH' && chmod +x fix.sh
#!/usr/bin/env bash
candidates=(
  "a $name"
)
# ----
exec "$@" \\
  more
BASH
RUN cat <<EOF1 | tr '[:upper:]' '[:lower:]' > ./out1; \\
\tcat <<-EOF2 | tr '[:lower:]' '[:upper:]' > ./out2
hello WORLD
EOF1
\tHELLO world
\tEOF2
RUN <<EOF
cat > nested <<X
nested
X
EOF
RUN <<EOF
echo before > before
false
echo after > after
exit 3
EOF
"""
    for number, line in enumerate(translated(tmp_path, text)[1:]):
        step = [*shell, "-c", line.removeprefix("RUN ")]
        result = run_process(step, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "name": "me"})
        assert result.exit_code == (3 if number == 7 else 0), result.stderr
    expected = {
        "one": "one\n",
        "foo/bar/two": "100% 'q' me \\\n",
        "three": "hello\tworld\n",
        "file1": "I am me\n",
        "file2": "I am\nsecond\n",
        "fix.sh": '#!/usr/bin/env bash\ncandidates=(\n  "a $name"\n)\n# ----\nexec "$@" \\\n  more\n',
        "out1": "hello world\n",
        "out2": "HELLO WORLD\n",
        "nested": "nested\n",
        "after": "after\n",
    }
    assert {name: (tmp_path / name).read_text() for name in expected} == expected
    assert (tmp_path / "fix.sh").stat().st_mode & 0o111


@given(LINES, st.sampled_from(SHELLS))
def test_a_step_gets_exactly_the_text_of_its_here_document(
    lines: list[str], shell: list[str]
) -> None:
    body = "".join(f"{line}\n" for line in lines if line.rstrip("\r") != "EOF")
    made = translate(f"FROM a\nRUN cat <<'EOF'\n{body}EOF\n", Path("unused"), {}, "").removeprefix(
        "FROM a\nRUN "
    )
    assert made.count("\n") == 1
    assert run_process([*shell, "-c", made]).stdout == body.encode()


def test_copies_become_files_beside_the_context(tmp_path: Path) -> None:
    """The examples of the Dockerfile reference and of BuildKit's tests."""
    text = """ARG GLOBAL=g
FROM a AS first
ARG FOO=bar
ARG GLOBAL
ENV QUOTED="two words" OLD_PATH=$PATH
COPY <<-EOT /script.sh
\techo "hello ${FOO}" '$GLOBAL' $QUOTED \\$FOO ${FOO:+set} ${FOO:-unset} $1$$ $ (
EOT
COPY <<-"EOT" /script.sh
\techo "hello ${FOO}" \\
EOT
COPY --chmod=0755 --chown=1:2 --link <<EOF <<EOF2 /double/
first
EOF
second
EOF2
ADD <<EOF plain.txt /bar/
EOF
COPY --link --chmod=u+x,go= <<EOF /bar/
EOF
COPY --chmod=$MODE <<EOF /bar/
EOF
FROM b
ARG FOO
ARG QUOTED=of-$FOO
COPY <<EOF /x
$FOO $QUOTED
EOF
FROM first
COPY <<EOF /x
$FOO
EOF
"""
    lines = translated(tmp_path, text, FOO="given")
    assert [line for line in lines if line.startswith(("COPY", "ADD"))] == [
        "COPY  FILES/0/EOT /script.sh",
        "COPY  FILES/1/EOT /script.sh",
        "COPY --chown=1:2 FILES/2/EOF /double/",
        "COPY --chown=1:2 FILES/3/EOF2 /double/",
        "COPY  FILES/4/EOF /bar/",
        "ADD plain.txt /bar/",
        "COPY  FILES/5/EOF /bar/",
        "COPY --chmod=$MODE FILES/6/EOF /bar/",
        "COPY  FILES/7/EOF /x",
        "COPY  FILES/8/EOF /x",
    ]
    contents = [next((tmp_path / "files" / str(number)).iterdir()) for number in range(9)]
    assert [file.read_text() for file in contents] == [
        "echo \"hello given\" 'g' two words $FOO set given  $ (\n",
        'echo "hello ${FOO}" \\\n',
        "first\n",
        "second\n",
        "",
        "",
        "",
        "given of-given\n",
        "given\n",
    ]
    assert [file.stat().st_mode & 0o777 for file in contents][1:7] == [
        0o644,
        0o755,
        0o755,
        0o644,
        0o700,
        0o644,
    ]


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        ("ONBUILD RUN <<EOF\nx\nEOF", 2, "ONBUILD"),
        (
            "COPY <<EOF /x\n$PATH\nEOF",
            2,
            r"value of \$PATH is not known; quote the delimiter \(<<'EOF'\)",
        ),
        ("ARG TARGETARCH\nCOPY <<EOF /x\n${TARGETARCH}\nEOF", 3, "TARGETARCH"),
        ("ENV A=$B\nCOPY <<EOF /x\n${A:-none}\nEOF", 3, r"\$A is not known"),
        ("COPY <<EOF /x\n${A%b}\nEOF", 2, "not known"),
        ("COPY --from=b <<EOF /x\nEOF", 2, "without --from"),
        ("COPY a <<EOF\nEOF", 2, "must be a source"),
        (
            "COPY --chmod=z+q <<EOF /x\nEOF",
            2,
            "--chmod must be a number such as 755, or a symbolic mode",
        ),
        ("COPY <<A <<B /x\nA\nB", 2, "end with /"),
        ("COPY <<../a /x\n../a", 2, "name of a file"),
        ('SHELL ["/bin/awk"]\nRUN <<EOF\nBEGIN {}\nEOF', 3, "/bin/awk cannot evaluate"),
        ("RUN <<EOF\n" + "x" * 200_000 + "\nEOF", 2, "COPY and run"),
        ("ENV A='it\nRUN <<EOF\nx\nEOF", 2, "a quote is not closed"),
        ("\nRUN x \\\n\n y <<EOF\nx\n EOF", 3, "has no end; add a line that has only EOF"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_its_line(
    lines: str, line: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        translate(f"FROM a\n{lines}\n", tmp_path, {}, "")
    assert f"line {line}: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert said.startswith(("has no end", "--chmod")) or "Docker 23" in str(caught.value)


def test_another_escape_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="backslash"):
        translate("# escape=`\nFROM a\nRUN <<EOF\nx\nEOF\n", tmp_path, {}, "")


def test_a_file_without_here_documents_is_used_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "Containerfile"
    file.write_bytes(b"FROM a\nRUN echo '\xff <<' $((1 << 3))\n")
    with for_older_builder(file, tmp_path, {}, "", modes="octal") as found:
        assert found == (file, None)


def test_bytes_and_line_ends_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "Containerfile"
    file.write_bytes(b"FROM a\r\nCOPY <<EOF /x\r\n\xff\r\nEOF\r\nRUN <<EOF\r\n\xfe\nEOF\n")
    with for_older_builder(file, tmp_path, {}, "F/", modes="octal") as (made, files):
        assert files is not None
        assert (
            made.read_bytes() == b"FROM a\r\nCOPY  F/0/EOF /x\nRUN eval \"$(printf '\xfe\\n')\"\n"
        )
        assert (files / "0" / "EOF").read_bytes() == b"\xff\r\n"
