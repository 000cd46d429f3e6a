"""Requirements files of others make pip of the host run nothing, and give it no variable of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.errors import ImageBuildError
from hyperruntime.images.recipes import requirements_context
from hyperruntime.images.requirements_file import write_plain_requirements

PLAIN = """\
# what we need
--index-url https://index.example/simple
numpy
requests[socks, security] >= 2.31, < 3  # pinned
tomli==2.0.1; python_version < "3.11"
idna~=3.4 \\
    --hash=sha256:0123
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


def test_a_file_of_names_and_versions_is_read_by_pip_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(PLAIN)
    (tmp_path / "constraints.txt").write_text("\ufeffnumpy<3\r\n")
    assert write_plain_requirements(tmp_path / "r.txt", tmp_path / "plain.txt") == ""
    assert (tmp_path / "plain.txt").read_text().splitlines() == [
        "--index-url https://index.example/simple",
        "numpy",
        "requests[socks, security] >= 2.31, < 3",
        'tomli==2.0.1; python_version < "3.11"',
        "idna~=3.4      --hash=sha256:0123",
        "-c constraints-plain.txt",
    ]
    assert (tmp_path / "constraints-plain.txt").read_text() == "numpy<3\n"


@pytest.mark.parametrize(
    "text",
    [
        "# packages \\\n./evil\n",  # pip does not continue a comment
        "# -*- coding: utf-7 -*-\n#+AAo-./evil\n",  # pip decodes the second line to two
        "idna\n#\x0b\\\n./evil",
    ],
)
def test_pip_of_the_host_reads_no_line_that_is_hidden_in_a_comment(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(text, newline="")
    write_plain_requirements(tmp_path / "r.txt", tmp_path / "plain.txt")
    assert not (tmp_path / "plain.txt").exists() or "evil" not in (tmp_path / "plain.txt").read_text()


@pytest.mark.parametrize("line", CODE)
@pytest.mark.parametrize("file", ["r.txt", "more.txt"])
def test_pip_of_the_host_never_reads_a_line_that_could_run_a_program(
    line: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to find that there is no wheel: pip runs ``setup.py`` to learn what a source package needs."""
    (tmp_path / "r.txt").write_text("idna\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("idna\n")
    (tmp_path / file).write_text(f"idna\n{line}\n")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/setup.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    def build() -> None:
        with requirements_context(tmp_path / "r.txt", said.append) as folder:
            assert not (folder / "wheels").exists()
            raise ImageBuildError("no network")

    with pytest.raises(ImageBuildError, match="reads only names and versions"):
        build()
    assert "the build downloads the packages itself" in said[0]
    assert not (tmp_path / "mark").exists()
