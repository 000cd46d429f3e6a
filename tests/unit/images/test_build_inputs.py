"""Which files of a context change the digest of a Dockerfile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images import build_inputs
from hyperruntime.images.build_inputs import dockerfile_digest

FILES = ("app/a.py", "app/deep/b.py", "logs/run.eval", "need s.txt", "one.txt", "two.txt")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "a folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    return tmp_path / "a folder"


@pytest.mark.parametrize(
    ("instructions", "read"),
    [
        ("RUN echo app/a.py one.txt", ""),
        ("COPY one.txt /x", "one.txt"),
        ("COPY --chmod=644 --link one.txt two.txt /x/", "one.txt two.txt"),
        ("ADD ./app /app", "app/a.py app/deep/b.py"),
        ("COPY app/*.py \\\n  ??o.txt /app/", "app/a.py two.txt"),
        ('COPY ["need s.txt", "/x"]', "need s.txt"),
        ('COPY "need s.txt" /x', " ".join(FILES)),  # not sure which: all count
        ("COPY . /x", " ".join(FILES)),
        ("COPY / /x", " ".join(FILES)),
        ("ARG NAME=one\nCOPY $NAME.txt /x", " ".join(FILES)),
        ("COPY app/../one.txt /x", " ".join(FILES)),
        ("COPY --from=other one.txt /x", ""),
        ("COPY <<EOF one.txt /x/\nhello\nEOF", "one.txt"),
        ("RUN --mount=type=bind,source=app,target=/app ls", "app/a.py app/deep/b.py"),
        ("RUN --mount=target=/all --network=none ls", " ".join(FILES)),
        ("RUN --mount=type=cache,target=/one.txt ls", ""),
        ("RUN --mount=from=other,source=app,target=/app ls", ""),
    ],
)
def test_only_files_that_an_instruction_reads_change_the_digest(
    context: Path, instructions: str, read: str
) -> None:
    dockerfile = context.parent / "Dockerfile"
    dockerfile.write_text(f"FROM base\n{instructions}\n")

    def digest() -> str:
        return dockerfile_digest(dockerfile, context)

    changed = []
    for name in FILES:
        before = digest()
        (context / name).write_text("after!")
        changed += [name] if digest() != before else []
    assert sorted(changed) == sorted(name for name in FILES if name in read)


def test_text_modes_links_and_new_files_change_the_digest(context: Path) -> None:
    dockerfile = context / "Dockerfile"
    (context / "link").symlink_to("app")
    dockerfile.write_text("FROM base\nCOPY app link /x/\n")
    changes: list[Callable[[], object]] = [
        lambda: dockerfile.write_text("FROM other\nCOPY app link /x/\n"),
        lambda: (context / "app/a.py").chmod(0o755),
        lambda: (context / "app/new").write_text(""),
        lambda: (context / "app/new").rename(context / "app/newer"),
        lambda: (context / "app/name").symlink_to("one"),
        lambda: (context / ".dockerignore").write_text("app/new*\n"),
        (context / "app/a.py").unlink,
    ]
    digests = [dockerfile_digest(dockerfile, context)]
    for change in changes:
        change()
        digests.append(dockerfile_digest(dockerfile, context))
    assert len(set(digests)) == len(changes) + 1
    assert dockerfile_digest(dockerfile, context) == digests[-1]


def test_another_translation_of_recipes_changes_the_digest(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an image that an older release built in another way is not used for ever."""
    dockerfile = context / "Dockerfile"
    dockerfile.write_text("FROM base\nCOPY app /x/\n")
    digests = {dockerfile_digest(dockerfile, context)}
    monkeypatch.setattr(build_inputs, "TRANSLATION", build_inputs.TRANSLATION + 1)
    digests.add(dockerfile_digest(dockerfile, context))
    assert len(digests) == 2


def test_what_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"Dockerfile.*readable"):
        dockerfile_digest(tmp_path / "Dockerfile", tmp_path)
