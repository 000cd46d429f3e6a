"""The environment class: its options, the agent's prompt, and the judging of the agent's work."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperenvironment_swe.items import SweItem, builtin_rows, is_python, load_rows, parse_row
from hyperenvironment_swe.judging import Court, Findings, JudgeError
from hyperenvironment_swe.state import State, pytest_settings, write_state
from hyperruntime.errors import SpecError, TransferError, UnsafeArchiveError
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.option_fields import ABOVE_ZERO, AtLeast
from hyperruntime.pool.lease import Lease
from hyperruntime.rollout.environment import Environment, Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.repositories import Checkout, Repositories, source_of
from hyperruntime.spec import Mount
from hyperruntime.transfer.extract import ExtractLimits
from hyperruntime.units import GIB, MIB

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.spec import ContainerSpec

BUILTIN = "builtin"
WHEELHOUSE = "/opt/hyperruntime/wheelhouse"
_READ_OUT_TIMEOUT_S = 300.0
_TREE_LIMITS = ExtractLimits(max_bytes=4 * GIB, max_members=400_000, max_member_bytes=256 * MIB)
_LISTED, _TAIL = 20, 4000
# Virtual environments do not count and may be large, so they are removed before the copy.
_LEAVE = '[ -d "$1" ] && [ ! -L "$1" ] && cd -- "$1" && { rm -rf .venv venv .tox .nox || :; }'
_PROMPT = """You are in a workspace with a git repository in the directory {repo_dir}.

Solve this problem by changing its source files:

{problem_statement}

Tests that you cannot see decide. Changes to existing tests and to the configuration of tests do not count."""
# pip runs from its own wheel, because an image may not have pip.
_INSTALL_WHEELS = """set -e
python3 -m venv --without-pip .venv
for pip in "$PIP_FIND_LINKS"/pip-*.whl; do :; done
.venv/bin/python "$pip/pip" install --quiet pip setuptools pytest
if [ -e pyproject.toml ] || [ -e setup.py ]; then .venv/bin/python -m pip install --quiet -e .; fi
"""


@attrs.define(kw_only=True)
class Swe:
    """Repair a repository so that given tests pass.

    Args:
        items: a file of rows (``.jsonl``, ``.json``, ``.parquet``), a directory with ``train.jsonl``, or
            ``builtin``.
        repo_base_url: base of ``owner/name``: ``https://...``, ``file:///...`` or a directory.
        image: image of items without one; None means the run's image.
        wheelhouse: host directory of wheels, the only source of pip; it must have pip, setuptools and pytest too.
        install: ``/bin/sh`` program that prepares a repository for its tests, for items without one; None installs from
            the wheelhouse, or does nothing without a wheelhouse.
        python: the Python that runs tests; None means that of ``.venv``, or else ``python3``.
        python_only: whether to skip rows whose PASS_TO_PASS is empty or has tests outside Python files.
        prompt: file with the user's message; ``{problem_statement}``, ``{repo_dir}`` and ``{text}`` are replaced.
        shuffle_seed: shuffles the items; None keeps their order.
        max_items: maximum number of items, from the first; None means all.
        score_include_fail_to_pass: whether FAIL_TO_PASS counts.
        shaped: whether a state that passes only some tests gets a partial reward of at most 0.5.
        install_timeout_s: timeout of an installation.
        test_timeout_s: timeout of the tests of one process.
        tests_per_process: maximum number of tests in one process.
        cache_dir: directory of the repository cache; None means the user's cache directory.

    Attributes:
        name: name of the entry point.
    """

    name = "swe"
    _items: str = BUILTIN
    _repo_base_url: str | None = None
    _image: str | None = None
    _wheelhouse: str | None = None
    _install: str | None = None
    _python: str | None = None
    _python_only: bool = False
    _prompt: str | None = None
    _shuffle_seed: int | None = None
    max_items: int | None = attrs.field(default=None, validator=AtLeast(1))
    _score_include_fail_to_pass: bool = True
    _shaped: bool = False
    install_timeout_s: float = attrs.field(default=600.0, validator=ABOVE_ZERO)
    test_timeout_s: float = attrs.field(default=600.0, validator=ABOVE_ZERO)
    tests_per_process: int = attrs.field(default=50, validator=AtLeast(1))
    _cache_dir: str | None = None
    _repositories: Repositories = attrs.field(init=False)
    _sound: set[str] = attrs.field(init=False, factory=set)  # ids of items whose base is known to install
    _offline: set[str] = attrs.field(init=False, factory=set)
    _base_locks: dict[str, asyncio.Lock] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Validate the options; ``items`` reads the rows.

        Raises:
            SpecError: an option names a missing file or directory, or a number is out of range.
        """
        if self._wheelhouse is not None and not os.path.isdir(self._wheelhouse):
            raise SpecError("option wheelhouse", self._wheelhouse, "a directory")
        self._prompt = _PROMPT if self._prompt is None else _read_prompt(self._prompt)
        self._repositories = Repositories(self._cache_dir)

    def items(self) -> Iterable[Item]:
        """Yield the items in the order of their rows.

        Raises:
            SpecError: a row is invalid or has no tests, or two rows have the same id.
        """
        directory = os.path.join(self._repositories.directory, "builtin")
        rows = builtin_rows(directory) if self._items == BUILTIN else load_rows(self._items)
        rows = [row for row in rows if not self._python_only or is_python(row)]
        if self._shuffle_seed is not None:
            random.Random(self._shuffle_seed).shuffle(rows)  # noqa: S311 - an order, not a secret
        seen: set[str] = set()
        for row in rows[: self.max_items]:
            item = parse_row(row)
            if item.id in seen:
                raise SpecError("items", item.id, "a unique id")
            if not self._wanted(item):
                lists = "FAIL_TO_PASS or PASS_TO_PASS" if self._score_include_fail_to_pass else "PASS_TO_PASS"
                raise SpecError("items", item.id, f"an item with at least one test in {lists}")
            seen.add(item.id)
            yield Item(id=item.id, data=attrs.asdict(item))

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the base spec with the item's image and environment, and a read-only mount of the wheelhouse.

        Args:
            item: the item.
            base: the run's container spec.
            images: the store that builds and finds images.
        """
        one = _swe(item)
        if base.network == "none":
            self._offline.add(one.id)
        image = one.image or self._image
        spec = attrs.evolve(base, image=images.ensure(image) if image else base.image)
        if self._wheelhouse is None:
            return attrs.evolve(spec, env={**spec.env, **one.env})
        mount = Mount(source=self._wheelhouse, target=WHEELHOUSE, read_only=True)
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELHOUSE, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return attrs.evolve(spec, mounts=(*spec.mounts, mount), env={**spec.env, **pip, **one.env})

    async def setup(self, item: Item, lease: Lease) -> Mapping[str, Any]:
        """Unpack a private clone at the base commit in the agent's workspace; fetch it if it is not cached.

        Args:
            item: the item.
            lease: the agent's slot.

        Raises:
            RepositoryError: the repository cannot be fetched.
            TransferError: the clone could not be unpacked in the slot.
        """
        one = _swe(item)
        checkout = await self._checkout(one)
        await checkout.unpack(lease, one.repo_dir)
        return {"repo_dir": one.repo_dir, "base_commit": one.base_commit}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the problem as the user's message.

        Args:
            item: the item.
            meta: the value that ``setup`` returned.
        """
        one = _swe(item)
        assert self._prompt is not None, "set after construction"
        text = self._prompt.replace("{repo_dir}", one.repo_dir).replace("{text}", one.text)
        return [{"role": "user", "content": text.replace("{problem_statement}", one.problem_statement)}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Lease, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Judge the agent's changes in a fresh container.

        Args:
            item: the item.
            outcome: how the agent's conversation ended.
            lease: the agent's slot.
            fresh: provides unused containers.
            meta: the value that ``setup`` returned.

        Raises:
            JudgeError: the base of the item cannot be installed or tested either.
        """
        one = _swe(item)
        if outcome.tool_calls == 0:
            return _nothing("no tool was called")
        checkout = await self._checkout(one)
        with tempfile.TemporaryDirectory(prefix="hyperruntime-swe-", ignore_cleanup_errors=True) as scratch:
            tree, clone = os.path.join(scratch, "agent"), os.path.join(scratch, "state")
            try:
                if problem := await _read_out(lease, one.repo_dir, tree):
                    return _nothing(problem)
                state = await asyncio.to_thread(write_state, one, checkout, tree, clone)
            finally:
                await asyncio.to_thread(remove_tree, tree)
            if state.problem or not state.changed:
                return _nothing(state.problem or "no change that counts was made", state)
            tested = await self._test(one, checkout, fresh, clone, state, self._wanted(one))
        if tested.ran:
            return self._verdict(one, state, tested)
        return await self._blame(one, checkout, fresh, state, tested)

    async def _test(
        self, one: SweItem, checkout: Checkout, fresh: Fresh, clone: str, state: State, ids: Sequence[str]
    ) -> Findings:
        """Install a state in a fresh container and run tests; without ``ids``, check that the test runner starts."""
        async with fresh() as judge:
            court = Court(judge, one.env)
            await court.receive(clone, one.repo_dir, state.gone)
            program = self._program(one)
            if program.strip():
                command = ["/bin/sh", "-c", program, "install"]
                installed = await court.run(command, timeout_s=self.install_timeout_s)
                if installed.exit_code != 0 or installed.timed_out:
                    return Findings(ran=False, output=installed.output, timed_out=installed.timed_out)
            settings, own_plugins = await asyncio.to_thread(pytest_settings, checkout)
            return await court.test(
                ids,
                {"runner": one.runner, "settings": settings, "own_plugins": own_plugins},
                python=one.python or self._python,
                chunk=self.tests_per_process,
                timeout_s=self.test_timeout_s,
            )

    def _program(self, one: SweItem) -> str:
        """Return the program that installs an item, or ""."""
        for program in (one.install, self._install):
            if program is not None:
                return program
        return _INSTALL_WHEELS if self._wheelhouse else ""

    async def _blame(self, one: SweItem, checkout: Checkout, fresh: Fresh, state: State, failure: Findings) -> Verdict:
        """Return a verdict against the agent, after checking that the base itself installs.

        An earlier successful check is reused only if containers have no network and the failure was not a timeout,
        because downloads and a busy machine can also cause failures.
        """
        async with self._base_locks.setdefault(one.id, asyncio.Lock()):
            if one.id not in self._sound or one.id not in self._offline or failure.timed_out:
                if problem := await self._base_problem(one, checkout, fresh):
                    why = f"its base does not install: {problem[-1000:]}"
                    raise JudgeError(f"item {one.id} cannot be judged, because {why}")
                self._sound.add(one.id)
        facts = {**_facts(state), "output": failure.output[-_TAIL:]}
        return Verdict(reward=0.0, parts={"install": 0.0}, phase="install", detail="it does not install", facts=facts)

    async def _base_problem(self, one: SweItem, checkout: Checkout, fresh: Fresh) -> str:
        with tempfile.TemporaryDirectory(prefix="hyperruntime-swe-", ignore_cleanup_errors=True) as scratch:
            clone = os.path.join(scratch, "state")
            base = await asyncio.to_thread(write_state, one, checkout, None, clone)
            tested = await self._test(one, checkout, fresh, clone, base, ())
            return "" if tested.ran else tested.output or "no output"

    def _verdict(self, one: SweItem, state: State, tested: Findings) -> Verdict:
        wanted = self._wanted(one)
        fraction = len(tested.passed) / len(wanted)
        whole = len(tested.passed) == len(wanted)
        parts = {"install": 1.0, "pass_to_pass": _part(one.pass_to_pass, tested.passed)}
        if self._score_include_fail_to_pass:
            parts["fail_to_pass"] = _part(one.fail_to_pass, tested.passed)
        failed = {name: tested.problems.get(name, "") for name in wanted if name not in tested.passed}
        facts = {**_facts(state), "separate_user": tested.separate, "forged": tested.forged, "tests": len(wanted)}
        facts |= {"failed": dict(list(failed.items())[:_LISTED]), "output": "" if whole else tested.output[-_TAIL:]}
        detail = "every test passed" if whole else f"{len(failed)} of {len(wanted)} tests did not pass"
        if tested.forged:
            detail = "tests that must fail were reported as passed, so no test counts"
        reward = 1.0 if whole else 0.5 * fraction if self._shaped else 0.0
        return Verdict(reward=reward, parts=parts, phase="tests", detail=detail, facts=facts)

    def _wanted(self, one: SweItem) -> tuple[str, ...]:
        return tuple(sorted({*one.pass_to_pass, *(one.fail_to_pass if self._score_include_fail_to_pass else ())}))

    async def _checkout(self, one: SweItem) -> Checkout:
        source = source_of(one.repo, self._repo_base_url)
        return await self._repositories.aprepare(source, one.base_commit)


async def _read_out(lease: Lease, repo_dir: str, target: str) -> str:
    """Copy the agent's directory to the host; return the problem if the agent caused it, else ""."""
    if (await lease.exec(["/bin/sh", "-c", _LEAVE, "leave", repo_dir], timeout_s=_READ_OUT_TIMEOUT_S)).exit_code != 0:
        return "the repository's directory does not exist"
    try:
        await lease.get(repo_dir, target, limits=_TREE_LIMITS, timeout_s=_READ_OUT_TIMEOUT_S)
    except UnsafeArchiveError as error:
        return f"the repository's directory is too large: {error}"
    except TransferError as error:
        if isinstance(error.__cause__, OSError):
            raise  # an error of the host
        return f"the repository's directory cannot be read: {error}"
    return ""


def _nothing(detail: str, state: State | None = None) -> Verdict:
    return Verdict(reward=0.0, phase="agent", detail=detail, facts={} if state is None else _facts(state))


def _facts(state: State) -> dict[str, Any]:
    return {"dropped": [list(one) for one in state.dropped[:_LISTED]], "patch_bytes": state.patch_bytes}


def _part(ids: Sequence[str], passed: frozenset[str]) -> float:
    return sum(name in passed for name in ids) / len(ids) if ids else 1.0


def _swe(item: Item) -> SweItem:
    return SweItem(**item.data)


def _read_prompt(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise SpecError("option prompt", path, f"a readable text file: {error}") from None


_environment: type[Environment] = Swe
