"""Build the state to judge: the agent's changes without changes to tests and to their configuration.

The agent's tree is untrusted; none of its code is run here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from hyperenvironment_swe.items import SweItem
from hyperruntime.errors import PatchError, RepositoryError
from hyperruntime.git.patch import parse_patch
from hyperruntime.rollout.repositories import Checkout

# Files with these names configure how tests are collected and run, or run code in every Python process.
ALWAYS_PROTECTED = (
    "**/conftest.py", "**/pytest.ini", "**/.pytest.ini", "**/tox.ini", "**/noxfile.py", "**/sitecustomize.py",
    "**/usercustomize.py", "**/*.pth", "**/*.egg-info", "**/*.egg-link", "**/*.dist-info", "**/pyvenv.cfg", "**/.venv",
    "**/venv", "**/.tox", "**/.nox", "**/site-packages",
)  # fmt: skip
_TEST_DIRECTORIES = ("tests", "test", "testing")
_BASE, _TESTS, _AGENT, _JUDGED = "base", "tests", "agent", "judged"


@attrs.frozen(kw_only=True)
class State:
    """A state to judge.

    Attributes:
        changed: whether the agent made any change that counts.
        problem: why the state cannot be judged, or "".
        gone: paths of the base that the state does not have.
        dropped: ``(path, reason)`` of each change that does not count.
        patch_bytes: size of the agent's diff in bytes.
    """

    changed: bool
    problem: str = ""
    gone: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    patch_bytes: int = 0


def protected_paths(item: SweItem) -> tuple[str, ...]:
    """Return patterns of paths that the agent may not change: tests, test directories and test configuration."""
    files = {test.partition("::")[0] for test in (*item.pass_to_pass, *item.fail_to_pass)}
    files |= {os.fsdecode(name) for part in parse_patch(item.test_patch.encode()) for name in part.names}
    return (*ALWAYS_PROTECTED, *sorted({_test_directory(file) for file in files}), *item.protected)


def write_state(item: SweItem, checkout: Checkout, agent_tree: str | None, target: str) -> State:
    """Write the state to judge to ``target`` as a clone: base, the agent's changes, the item's tests.

    Args:
        item: the problem.
        checkout: the base commit of the item.
        agent_tree: copy of the agent's directory; None means no changes.
        target: the directory to create.

    Raises:
        RepositoryError: the test patch of the item does not apply to its base.
    """
    with checkout.store() as store:
        try:
            final = store.apply_patch(checkout.commit, item.test_patch.encode(), _TESTS).commit
        except PatchError as error:
            raise RepositoryError(f"test_patch of item {item.id} does not apply to its base: {error}") from error
        if agent_tree is None:
            store.checkout(final, target)
            return State(changed=False)
        try:
            snapshot = store.snapshot(checkout.commit, agent_tree, _AGENT, protected=protected_paths(item))
            final = store.apply_patch(snapshot.commit, item.test_patch.encode(), _JUDGED).commit
        except PatchError as error:
            return State(changed=True, problem=str(error))
        store.checkout(final, target)
        gone = store.entries(checkout.commit).keys() - store.entries(final).keys()
        return State(
            changed=bool(snapshot.patch),
            gone=tuple(sorted(map(os.fsdecode, gone))),
            dropped=snapshot.dropped,
            patch_bytes=len(snapshot.patch),
        )


def pytest_settings(checkout: Checkout) -> tuple[tuple[str, str], bool]:
    """Return pytest's settings in the base commit, and whether the repository registers plugins of pytest there.

    The settings are the suffix and the content of their file, or an empty ``.ini``.

    Source: pytest's reference guide, "Configuration: rootdir and configfile".
    """
    with checkout.store() as store:
        files = {name: store.read_file(checkout.commit, name) for name in (*_SETTINGS, "setup.py")}
    contents = {name: content for name, content in files.items() if content is not None}
    own_plugins = any(b"pytest11" in contents.get(name, b"") for name in ("pyproject.toml", "setup.cfg", "setup.py"))
    for name, mark in _SETTINGS.items():
        if name in contents and mark in contents[name]:
            return (os.path.splitext(name)[1] or ".ini", contents[name].decode("utf-8", "replace")), own_plugins
    return (".ini", ""), own_plugins


_SETTINGS: Mapping[str, bytes] = {
    "pytest.ini": b"",
    ".pytest.ini": b"",
    "pyproject.toml": b"[tool.pytest",
    "tox.ini": b"[pytest]",
    "setup.cfg": b"[tool:pytest]",
}


def _test_directory(file: str) -> str:
    """Return the outermost test directory above a file, or the file itself if there is none."""
    parts = file.split("/")
    for end, part in enumerate(parts[:-1], start=1):
        if part in _TEST_DIRECTORIES:
            return "/".join(parts[:end])
    return file
