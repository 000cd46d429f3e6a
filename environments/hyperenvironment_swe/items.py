"""Items in the form of SWE-bench and SWE-smith: each is parsed from a row.

Source: the data sets ``princeton-nlp/SWE-bench`` and ``SWE-bench/SWE-smith``. A row of the first
has ``base_commit``; its ``patch`` is the solution. A row of the second has ``image_name`` and no
commit; its ``patch`` is the bug, in the default branch of ``repo``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json

_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_IDS = ("instance_id", "id", "problem_id")
_IMAGES = ("image", "docker_image", "image_name")
_RUNNERS = ("pytest", "unittest")


@attrs.frozen(kw_only=True)
class SweItem:
    """One problem; the solution of a row is not stored.

    Attributes:
        id: id of the item.
        repo: ``owner/name``, a URL or an absolute path.
        base_commit: full name of the base commit; "" means that of the default branch.
        bug_patch: diff from this commit to the state in which the agent begins, or "".
        problem_statement: the problem for the prompt.
        text: more text for the prompt.
        pass_to_pass: ids of tests that pass before and after the repair.
        fail_to_pass: ids of tests that pass only after the repair.
        test_patch: diff that adds the hidden tests, or "".
        install: ``/bin/sh`` program that prepares the repository for its tests; None means the
            environment's.
        python: the Python that runs the tests, as a path or a name; None means the environment's.
        image: image of the container; None means the environment's, or else the run's.
        env: environment variables of the container, of the installation and of the tests.
        protected: patterns of paths where the agent's changes do not count.
        runner: ``pytest`` or ``unittest``.
        repo_dir: directory of the repository in the container: relative to the workspace, or
            absolute.
    """

    id: str
    repo: str
    base_commit: str
    problem_statement: str
    bug_patch: str = ""
    text: str = ""
    pass_to_pass: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    test_patch: str = ""
    install: str | None = None
    python: str | None = None
    image: str | None = None
    env: Mapping[str, str] = attrs.field(factory=dict)
    protected: tuple[str, ...] = ()
    runner: str = "pytest"
    repo_dir: str


def is_python(row: Mapping[str, Any]) -> bool:
    """Return whether a row has tests in PASS_TO_PASS, all of them in Python files."""
    tests = _test_ids(row, "PASS_TO_PASS", "")
    return bool(tests) and all(".py::" in name for name in tests)


def row_id(row: Mapping[str, Any]) -> str:
    """Return the id of a row, which may be invalid, or ""."""
    return next((str(row[name]).replace("/", "__") for name in _IDS if row.get(name)), "")


def parse_row(row: Mapping[str, Any], repo_dir: str | None = None) -> SweItem:
    """Return the item of a row.

    Args:
        row: the row.
        repo_dir: directory of the repository if the row names none; None means the name of the
            repository.

    Raises:
        SpecError: a field is missing or invalid; the message names the field.
    """
    item_id = row_id(row)
    if not _ID.fullmatch(item_id):
        has = "none" if not row else ", ".join(map(str, list(row)[:8]))
        raise SpecError(
            "instance_id",
            item_id,
            f"letters, digits, - _ . (or as id, or problem_id); the row has the fields: {has}",
        )
    where = f"of item {item_id}"
    repo = _text(row, "repo", where)
    runner = _text(row, "runner", where, "pytest")
    if not repo or runner not in _RUNNERS:
        raise SpecError(
            f"repo and runner {where}", (repo, runner), f"a repository, and {' or '.join(_RUNNERS)}"
        )
    commit = _text(row, "base_commit", where, "").lower()
    bug = "" if commit else _text(row, "patch", where, "")
    if not (commit or (bug and row.get("image_name"))):
        allowed = (
            "a commit; only a row of SWE-smith has none, but image_name and, as patch, the bug"
        )
        raise SpecError(f"base_commit {where}", row.get("base_commit"), allowed)
    return SweItem(
        id=item_id,
        repo=repo,
        base_commit=commit,
        bug_patch=bug,
        problem_statement=_text(row, "problem_statement", where),
        text=_text(row, "text", where, ""),
        pass_to_pass=_test_ids(row, "PASS_TO_PASS", where),
        fail_to_pass=_test_ids(row, "FAIL_TO_PASS", where),
        test_patch=_text(row, "test_patch", where, ""),
        install=_optional(row, "install", where),
        python=_optional(row, "python", where),
        image=next(filter(None, (_optional(row, name, where) for name in _IMAGES)), None),
        env=_environment(row.get("env"), where),
        protected=_strings(row.get("protected"), f"protected {where}"),
        runner=runner,
        repo_dir=check_repo_dir(
            _text(row, "repo_dir", where, "") or repo_dir or _directory_of(repo), where
        ),
    )


def _text(row: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = row.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or "\0" in value:
        raise SpecError(f"{name} {where}", value, "text")
    return value


def _optional(row: Mapping[str, Any], name: str, where: str) -> str | None:
    return None if row.get(name) is None else _text(row, name, where)


def _test_ids(row: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """Return sorted unique test ids from a list or from its JSON text."""
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            raise SpecError(
                f"{name} {where}", value, "a list of test ids, or its JSON text"
            ) from None
    ids = _strings(value, f"{name} {where}")
    for test in ids:
        path, colons, _ = test.partition("::")
        if (colons and (path.startswith("/") or ".." in path.split("/"))) or not test.isprintable():
            raise SpecError(
                f"{name} {where}", test, "path/of/file.py::test, relative to the repository"
            )
    return tuple(sorted(set(ids)))


def _strings(value: Any, field: str) -> tuple[str, ...]:  # noqa: ANN401 - of a row
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(
        isinstance(one, str) and one for one in value
    ):
        raise SpecError(field, value, "a list of non-empty texts")
    return tuple(value)


def _environment(value: Any, where: str) -> Mapping[str, str]:  # noqa: ANN401 - of a row
    given = value or {}
    if not isinstance(given, dict) or not all(
        isinstance(x, str) for pair in given.items() for x in pair
    ):
        raise SpecError(f"env {where}", value, "an object whose values are text")
    return dict(given)


def check_repo_dir(name: str, where: str = "") -> str:
    """Return a directory of a repository.

    Args:
        name: the directory.
        where: ends the name of the field in a message.

    Raises:
        SpecError: it is neither one name nor an absolute path.
    """
    parts = name.removeprefix("/").split("/")
    if not all(_NAME.fullmatch(part) for part in parts) or (
        len(parts) > 1 and not name.startswith("/")
    ):
        raise SpecError(
            f"repo_dir {where}".strip(),
            name,
            "one name, or an absolute path; letters, digits, - _ .",
        )
    return name


def _directory_of(repo: str) -> str:
    last_part = repo.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return re.sub(r"[^A-Za-z0-9_.-]", "_", last_part).lstrip(".-")


def image_of(item: SweItem, template: str) -> str:
    """Return the image that a template gives an item.

    Args:
        item: the problem.
        template: text with ``{id}``, ``{id_1776}`` (``_1776_`` for ``__``, as SWE-bench's images)
            or ``{image_name}``.

    Raises:
        SpecError: the template has another placeholder, or needs an image that the row does not
            name.
    """
    name = item.id.lower()
    values = {"id": name, "id_1776": name.replace("__", "_1776_")}
    if item.image is not None:
        values["image_name"] = item.image
    try:
        return template.format_map(values)
    except (KeyError, ValueError, IndexError, AttributeError):
        allowed = f"text with {' or '.join(f'{{{name}}}' for name in values)} for item {item.id}"
        raise SpecError("option image_template", template, allowed) from None
