"""Requirements files of others make pip of the host run nothing, and give it no variable of the
environment.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.images.packages.requirements_file import read_requirements, write_requirements
from hyperruntime.images.packages.wheels import WheelSearch
from tests.doubles.packages import make_sdist, use_only

PLAIN = """\
# what we need
--index-url https://index.example/simple
numpy
requests[socks, security] >= 2.31, < 3  # pinned
tomli==2.0.1; python_version < "3.11"
idna~=3.4
-c constraints.txt
"""
CODE = [
    "./evil",
    "evil/",
    "-e evil",
    "--editable=evil",
    "evil @ file:///tmp/evil",
    "git+https://example.org/evil.git",
    "https://example.org/evil.tar.gz",
    "evil.zip",
    "evil-1.0.tar.gz[extra]",
    "--no-binary :all:",
    "idna --config-settings=x=y",
    "--index-url https://example.org/${HOME}/simple",
    "-r https://example.org/more.txt",
    "name \\\n @ file:///tmp/evil",
    '-r "more.txt"',
    "-r a -r b",
    "-r=more.txt",
    "-i --no-binary=:all:",
    "-f . --no-binary=:all:",
    "idna>=1 --global-option=x",
    'idna; python_version > "3" --global-option=x',
    "idna[a --global-option=x]",
    "idna --hash=sha256:00 --global-option=x",
    "idna\u2003--global-option=x",
]
FOR_A_CONTAINER = {
    "git+https://example.org/evil.git",
    "https://example.org/evil.tar.gz",
    "--no-binary :all:",
    "idna --config-settings=x=y",
    "idna>=1 --global-option=x",
    'idna; python_version > "3" --global-option=x',
    "idna --hash=sha256:00 --global-option=x",
}


def plain_of(file: Path) -> list[str]:
    """Return the lines of a file that pip of the host may read."""
    return [line.text for line in read_requirements(file).plain]


def test_a_file_of_names_and_versions_is_read_by_pip_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(PLAIN)
    (tmp_path / "constraints.txt").write_text("\ufeffnumpy<3\r\n")
    found = read_requirements(tmp_path / "r.txt")
    assert (found.problems, found.sources, found.inside) == ([], [], [])
    write_requirements(found.plain, tmp_path / "plain.txt")
    assert (tmp_path / "plain.txt").read_text().splitlines() == [
        "--index-url https://index.example/simple",
        "numpy",
        "requests[socks, security] >= 2.31, < 3",
        'tomli==2.0.1; python_version < "3.11"',
        "idna~=3.4",
        "-c constraints-plain.txt",
    ]
    assert (tmp_path / "constraints-plain.txt").read_text() == "numpy<3\n"


def test_a_continued_line_is_one_line_and_has_the_number_of_its_first(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("\nidna==3.4 \\\n    --hash=sha256:0123\nnum\\\npy\n")
    found = read_requirements(tmp_path / "r.txt")
    assert [(line.place, line.text) for line in found.plain] == [
        ("r.txt:2", "idna==3.4     --hash=sha256:0123"),
        ("r.txt:4", "numpy"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# packages \\\n./evil\n",  # pip does not continue a comment
        "# -*- coding: utf-7 -*-\n#+AAo-./evil\n",  # pip decodes the second line to two
        "idna\n#\x0b\\\n./evil",
    ],
)
def test_pip_of_the_host_reads_no_line_that_is_hidden_in_a_comment(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_text(text, newline="")
    assert "evil" not in str(plain_of(tmp_path / "r.txt"))


@pytest.mark.parametrize("line", CODE)
@pytest.mark.parametrize("file", ["r.txt", "more.txt"])
def test_pip_of_the_host_never_reads_a_line_that_could_run_a_program(
    line: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_text("idna\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("idna\n")
    (tmp_path / file).write_text(f"idna\n{line}\n")
    found = read_requirements(tmp_path / "r.txt")
    assert set(plain_of(tmp_path / "r.txt")) == {"idna"}
    assert len(found.problems) + len(found.sources) + len(found.inside) == 1
    assert bool(found.problems) == (line not in FOR_A_CONTAINER)


@pytest.mark.slow
def test_pip_of_the_host_runs_no_program_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to find that there is no wheel: pip runs ``setup.py`` to learn what a source package
    needs.
    """
    use_only(tmp_path / "packages", monkeypatch)
    make_sdist(tmp_path / "packages", "evil", "1.0", tmp_path / "mark")
    (tmp_path / "r.txt").write_text(
        "\n".join(["evil", *(line for line in CODE if "index-url" not in line)])
    )
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/setup.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    found = read_requirements(tmp_path / "r.txt")
    for number, only_look in enumerate((True, False)):
        folder = tmp_path / str(number)
        search = WheelSearch(requirements=found, python="3.11", directory=folder, on_output=print)
        assert [one.wanted for one in search.collect(folder / "wheels", only_look=only_look)] == [
            "evil"
        ]
    assert not (tmp_path / "mark").exists()


def test_all_problems_of_a_file_are_found_at_once_with_their_places(tmp_path: Path) -> None:
    lines = [
        "a==1",
        "-r none.txt",
        "./path",
        "A==2",
        "git+file:///x",
        "hg+https://example.org/x",
        "-r deep.txt",
    ]
    (tmp_path / "r.txt").write_text(
        "\n".join([*lines, "-i https://me:secret@example.org/", "--no-index"])
    )
    (tmp_path / "deep.txt").write_text("--index-url https://example.org/${KEY}/simple\n\xe9\n")
    problems = read_requirements(tmp_path / "r.txt").problems
    for start in (
        "none.txt: the file",
        "r.txt:3: ",
        "r.txt:4: ",
        "r.txt:5: ",
        "r.txt:6: ",
        "deep.txt:1: ",
        "deep.txt:2: ",
        "r.txt:8: ",
    ):
        assert [text for text in problems if text.startswith(start)], start
    assert len(problems) == 8
    assert "secret" not in str(problems)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("idna==3.4 --hash=sha256:00\nnumpy==1\n", ["r.txt:2"]),
        ("--require-hashes\nnumpy==1\ngit+https://example.org/a.git\n", ["r.txt:2", "r.txt:3"]),
        ("idna==3.4 --hash=sha256:00\nhttps://example.org/a.zip#sha256=00\n", []),
        ("idna==3.4\nidna==3.4\n", []),
        ('a==1; python_version < "3"\na==2; python_version > "3"\n', []),
        ("--no-index\n--find-links https://example.org/files\n", []),
    ],
)
def test_lines_that_contradict_each_other_are_problems(
    text: str, problems: list[str], tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_text(text)
    assert [
        one.partition(": ")[0] for one in read_requirements(tmp_path / "r.txt").problems
    ] == problems


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("-e git+https://example.org/a.git@v1#egg=a", "git+https://example.org/a.git@v1#egg=a"),
        ("a @ git+https://example.org/a.git", "a @ git+https://example.org/a.git"),
        ("https://example.org/a.tar.gz", "https://example.org/a.tar.gz"),
        ("git+https://example.org/a.git@--upload-pack=evil", ""),
        ("git+https://example.org/a.git --config-settings=x=y", ""),
    ],
)
def test_source_code_on_the_network_is_recognised(line: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(line)
    assert [one.text for one in read_requirements(tmp_path / "r.txt").sources] == (
        [source] if source else []
    )
