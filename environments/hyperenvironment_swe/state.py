"""Build the state to judge: the agent's changes without changes to tests and to their
configuration.

The agent's tree is untrusted; none of its code is run here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs

from hyperenvironment_swe.items import SweItem
from hyperruntime.errors import PatchError, RepositoryError, TransferError, UnsafeArchiveError
from hyperruntime.git.change_rules import SUBMODULE, ChangeRules
from hyperruntime.git.patch import parse_patch
from hyperruntime.git.store import RepositoryStore
from hyperruntime.rollout.repositories import Checkout
from hyperruntime.sandbox import Sandbox
from hyperruntime.transfer.extract import ExtractLimits
from hyperruntime.units import GIB, MIB

# Files with these names configure how tests are collected and run, or run code in every Python
# process.
ALWAYS_PROTECTED = (
    "**/conftest.py", "**/pytest.ini", "**/.pytest.ini", "**/tox.ini", "**/noxfile.py", "**/sitecustomize.py",
    "**/usercustomize.py", "**/*.pth", "**/*.egg-info", "**/*.egg-link", "**/*.dist-info", "**/pyvenv.cfg", "**/.venv",
    "**/venv", "**/.tox", "**/.nox", "**/site-packages",
)  # fmt: skip
_MAX_HELPER_BYTES = 16_000_000
_TEST_DIRECTORIES = ("tests", "test", "testing")
# Virtual environments do not count and may be large, so they are removed before the copy.
_LEAVE = '[ -d "$1" ] && [ ! -L "$1" ] && cd -- "$1" && { rm -rf .venv venv .tox .nox || :; }'
_READ_OUT_TIMEOUT_S = 300.0
_TREE_LIMITS = ExtractLimits(max_bytes=4 * GIB, max_members=400_000, max_member_bytes=256 * MIB)
_BASE = "base"
_TESTS = "tests"
_AGENT = "agent"
_JUDGED = "judged"


@attrs.frozen(kw_only=True)
class State:
    """A state to judge.

    Attributes:
        changed: whether the agent made any change that counts.
        problem: why the state cannot be judged, or "".
        gone: paths of the base that the state does not have.
        dropped: ``(path, reason)`` of each change that does not count.
        submodules: paths whose files are missing, because submodules are not fetched.
        patch_bytes: size of the agent's diff in bytes.
    """

    changed: bool
    problem: str = ""
    gone: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    submodules: tuple[str, ...] = ()
    patch_bytes: int = 0


@attrs.frozen
class TreeFiles:
    """The files of a commit.

    Attributes:
        paths: their paths, in order.
        read: returns the content of one of them; None if it is not a file.
    """

    paths: Mapping[str, None]
    read: Callable[[str], bytes | None]


def patched_files(patch: str) -> list[str]:
    """Return the paths that a diff touches."""
    return [os.fsdecode(name) for part in parse_patch(patch.encode()) for name in part.names]


@contextmanager
def with_tests(item: SweItem, checkout: Checkout) -> Iterator[TreeFiles]:
    """Yield the files of an item's base with its tests.

    Raises:
        RepositoryError: the test patch of the item does not apply to its base.
    """
    with checkout.store() as store:
        commit = _add_tests(store, item, checkout)
        paths = dict.fromkeys(os.fsdecode(path) for path in store.entries(commit))
        yield TreeFiles(paths, partial(store.read_file, commit))


def protected_paths(item: SweItem, tests: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of paths that the agent may not change: tests, test directories and test
    configuration.

    Args:
        item: the problem.
        tests: ids of its tests: ``path/of/file.py::test``.
    """
    directories = {_test_directory(file) for file in _files_of(item, tests)}
    return (*ALWAYS_PROTECTED, *sorted(directories), *item.protected)


def write_state(
    item: SweItem,
    checkout: Checkout,
    agent_tree: str | None,
    target: str,
    *,
    tests: Iterable[str] = (),
    left: Sequence[tuple[str, str]] = (),
) -> State:
    """Write the state to judge to ``target`` as a clone: base, the agent's changes, the item's
    tests.

    Args:
        item: the problem.
        checkout: the base commit of the item.
        agent_tree: copy of the agent's directory; None means no changes.
        target: the directory to create.
        tests: ids of the item's tests.
        left: ``(path, reason)`` of files that the copy of the agent's directory lacks; they stay as
            in the base.

    Raises:
        RepositoryError: the test patch of the item does not apply to its base.
    """
    with checkout.store() as store:
        final = _add_tests(store, item, checkout)
        if agent_tree is None:
            _write_clone(store, checkout.commit, final, target)
            return State(changed=False)
        dropped = tuple(left)
        protected = (*protected_paths(item, tests), *(path for path, _ in left if path))
        try:
            snapshot = store.snapshot(
                checkout.commit, agent_tree, _AGENT, ChangeRules(protected=protected)
            )
            dropped += tuple(one for one in snapshot.dropped if one[0] not in dict(left))
            final = store.apply_patch(snapshot.commit, item.test_patch.encode(), _JUDGED).commit
        except PatchError as error:
            return State(changed=True, problem=str(error), dropped=dropped)
        _write_clone(store, snapshot.commit, final, target)
        files = store.entries(final)
        gone = store.entries(checkout.commit).keys() - files.keys()
        return State(
            changed=bool(snapshot.patch),
            gone=tuple(sorted(map(os.fsdecode, gone))),
            dropped=dropped,
            submodules=tuple(
                os.fsdecode(path) for path, one in files.items() if one.mode == SUBMODULE
            ),
            patch_bytes=len(snapshot.patch),
        )


def _write_clone(store: RepositoryStore, commit: str, final: str, target: str) -> None:
    """Write the files of ``final`` as a clone of ``commit``, which lacks the item's tests.

    Code under test could read them there, and so find out which file of a test is a control. Git
    then shows these files as changed; so it does where the evaluation of SWE-bench applies its test
    patch.
    """
    if store.tree(commit) == store.tree(final):
        store.checkout(final, target)
        return
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as beside:
        store.checkout(commit, beside)
        store.export(final, target)
        os.rename(os.path.join(beside, ".git"), os.path.join(target, ".git"))


def _add_tests(store: RepositoryStore, item: SweItem, checkout: Checkout) -> str:
    try:
        return store.apply_patch(checkout.commit, item.test_patch.encode(), _TESTS).commit
    except PatchError as error:
        raise RepositoryError(
            f"test_patch of item {item.id} does not apply to its base: {error}"
        ) from error


async def read_out(
    lease: Sandbox, repo_dir: str, target: str
) -> tuple[str, Sequence[tuple[str, str]]]:
    """Copy the agent's directory to the host; return a problem that the agent caused, or "", and
    what was left out.

    Args:
        lease: the agent's slot.
        repo_dir: the directory.
        target: the path to create.

    Raises:
        TransferError: the host cannot write the files.
    """
    if (
        await lease.exec(
            ["/bin/sh", "-c", _LEAVE, "leave", repo_dir], timeout_s=_READ_OUT_TIMEOUT_S
        )
    ).exit_code != 0:
        return "the repository's directory does not exist", ()
    try:
        report = await lease.get(
            repo_dir, target, limits=_TREE_LIMITS, timeout_s=_READ_OUT_TIMEOUT_S
        )
    except UnsafeArchiveError as error:
        return f"the repository's directory is too large: {error}", ()
    except TransferError as error:
        if isinstance(error.__cause__, OSError):
            raise  # an error of the host
        return f"the repository's directory cannot be read: {error}", ()
    # Names in the archive begin with that of the directory.
    return "", [
        (name.removeprefix("./").partition("/")[2] or name, reason)
        for name, reason in report.refused
    ]


def files_of_tests(item: SweItem, tests: Iterable[str], clone: str) -> dict[str, str]:
    """Return the content of the files that hold the tests of an item and of other protected Python
    files, by path.

    Args:
        item: the problem.
        tests: ids of its tests: ``path/of/file.py::test``.
        clone: directory of a state of the item.
    """
    wanted = _files_of(item, tests)
    directories = sorted({_test_directory(file) for file in wanted})
    below = (
        str(path.relative_to(clone))
        for name in directories
        for path in sorted(Path(clone, name).rglob("*.py"))
    )
    contents: dict[str, str] = {}
    size = 0
    for name in dict.fromkeys([*sorted(wanted), *below]):
        path = Path(clone, name)
        if (
            path.is_file()
            and not path.is_symlink()
            and (name in wanted or size < _MAX_HELPER_BYTES)
        ):
            contents[name] = path.read_bytes().decode("utf-8", "surrogateescape")
            size += len(contents[name])
    return contents


def pytest_settings(checkout: Checkout) -> tuple[tuple[str, str], bool]:
    """Return pytest's settings in the base commit, and whether the repository registers plugins of
    pytest there.

    The settings are the suffix and the content of their file, or an empty ``.ini``.

    Source: pytest's reference guide, "Configuration: rootdir and configfile".
    """
    with checkout.store() as store:
        files = {name: store.read_file(checkout.commit, name) for name in (*_SETTINGS, "setup.py")}
    contents = {name: content for name, content in files.items() if content is not None}
    own_plugins = any(
        b"pytest11" in contents.get(name, b"")
        for name in ("pyproject.toml", "setup.cfg", "setup.py")
    )
    for name, mark in _SETTINGS.items():
        if name in contents and mark in contents[name]:
            return (
                os.path.splitext(name)[1] or ".ini",
                contents[name].decode("utf-8", "replace"),
            ), own_plugins
    return (".ini", ""), own_plugins


_SETTINGS: Mapping[str, bytes] = {
    "pytest.ini": b"",
    ".pytest.ini": b"",
    "pyproject.toml": b"[tool.pytest",
    "tox.ini": b"[pytest]",
    "setup.cfg": b"[tool:pytest]",
}


def _files_of(item: SweItem, tests: Iterable[str]) -> set[str]:
    return {test.partition("::")[0] for test in tests} | set(patched_files(item.test_patch))


def _test_directory(file: str) -> str:
    """Return the outermost test directory above a file, or the file itself if there is none."""
    parts = file.split("/")
    for end, part in enumerate(parts[:-1], start=1):
        if part in _TEST_DIRECTORIES:
            return "/".join(parts[:end])
    return file
