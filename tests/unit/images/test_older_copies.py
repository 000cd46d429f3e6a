"""COPY for builders that know neither --link nor symbolic modes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images.older_builders import for_older_builder


@pytest.fixture
def context(tmp_path: Path) -> Path:
    context = tmp_path / "context"
    (context / "app").mkdir(parents=True)
    for name in ("a b", "run.sh", "app/main", "app/secret"):
        (context / name).write_text(name)
        (context / name).chmod(0o640)
    (context / ".dockerignore").write_text("\ufeff**/secret\r\n")
    os.mkfifo(context / "app" / "pipe")
    return context


@pytest.mark.parametrize(
    ("line", "made", "modes"),
    [
        ("COPY --link a /x", "COPY a /x", {}),
        ("COPY --link=false --chown=1:1 a /x", "COPY --chown=1:1 a /x", {}),
        ("COPY --chmod=755 app /x", "COPY --chmod=755 app /x", {}),
        (
            "COPY --chmod=u=rwX,go=rX app run.sh /x/",
            "COPY F/0/tree /x/",
            {"main": 0o644, "run.sh": 0o644},
        ),
        (
            "COPY --link --chmod=+x --chown=1 run.sh /x",
            "COPY --chown=1 F/0/tree/run.sh /x",
            {"run.sh": 0o751},
        ),
        ("ONBUILD COPY --link --chown=1:1 a /x", "ONBUILD COPY --chown=1:1 a /x", {}),
        ("ONBUILD COPY --chmod=755 a /x", "ONBUILD COPY --chmod=755 a /x", {}),
        ("ONBUILD RUN x --link", "ONBUILD RUN x --link", {}),
        ('ADD --chmod=a+r ["a b", "/x"]', 'COPY ["F/0/tree/a b", "/x"]', {"a b": 0o644}),
    ],
)
def test_a_copy_has_the_same_files_and_modes(
    context: Path, line: str, made: str, modes: dict[str, int]
) -> None:
    file = context / "Dockerfile"
    file.write_text(f"FROM a\n{line}\nRUN x\n")
    with for_older_builder(file, context, {}, "F/", modes="octal") as (plain, files):
        assert [" ".join(each.split()) for each in plain.read_text().splitlines()] == [
            "FROM a",
            made,
            "RUN x",
        ]
        found = {
            path.name: path.stat().st_mode & 0o777
            for path in (files or context / "none").glob("0/tree/*")
        }
    assert found == modes


@pytest.mark.parametrize(
    "line",
    [
        "COPY --chmod=z+q a /x",
        "COPY --chmod=a+x missing /x",
        "COPY --chmod=a+x ../out /x",
        "COPY --chmod=a+x $A /x",
        "COPY --from=b --chmod=a+x c /x",
        "ADD --chmod=a+x http://h/y /x",
        "COPY --chmod=a+x app/secret /x",
        "ONBUILD COPY --link --chmod=a+x run.sh /x",
    ],
)
def test_a_mode_that_cannot_be_given_is_refused(context: Path, line: str) -> None:
    (context.parent / "out").touch()
    file = context / "Dockerfile"
    file.write_text(f"FROM a\n{line}\n")
    with (
        pytest.raises(SpecError, match=r"COPY|ADD"),
        for_older_builder(file, context, {}, "F/", modes="octal"),
    ):
        pass


def test_a_directory_that_a_link_names_is_copied_without_what_is_ignored(context: Path) -> None:
    (context / "link").symlink_to("app")
    file = context / "Dockerfile"
    file.write_text("FROM a\nCOPY --chmod=a+r link /x\n")
    with for_older_builder(file, context, {}, "F/", modes="octal") as (_, files):
        assert files is not None
        assert [path.name for path in (files / "0" / "tree").iterdir()] == ["main"]


@pytest.mark.parametrize("mode", ["644", "0600", "u=rw,go=r", "111"])
def test_a_mode_that_closes_directories_can_be_given_by_any_user(context: Path, mode: str) -> None:
    file = context / "Dockerfile"
    file.write_text(f"FROM a\nCOPY --chmod={mode} app run.sh /x/\n")
    with for_older_builder(file, context, {}, "F/", modes="none") as (_, files):
        assert files is not None
        tree = files / "0" / "tree"
        assert tree.stat().st_mode & 0o700 == 0o700  # it becomes the mode of a new target
        assert tree.joinpath("run.sh").stat().st_mode & 0o111 == (0o111 if mode == "111" else 0)
