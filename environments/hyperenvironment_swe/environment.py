"""The environment itself: options, what an agent is told, and how what it left is judged."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperenvironment_swe.builtin import builtin_rows
from hyperenvironment_swe.items import SweItem, choose_rows, load_rows, parse_row
from hyperenvironment_swe.judging import Court, Ended, Findings, JudgeError, TestPlan
from hyperenvironment_swe.state import State, brings_plugins, pytest_settings, write_state
from hyperruntime.errors import SpecError, TransferError, UnsafeArchiveError
from hyperruntime.host.rmtree import remove_tree
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
# Virtual environments do not count and may be large: they need not be copied.
_LEAVE = '[ -d "$1" ] && [ ! -L "$1" ] && cd -- "$1" && { rm -rf .venv venv .tox .nox || :; }'
_PROMPT = """You are in a workspace with a git repository in the directory {repo_dir}.

Solve this problem by changing its source files:

{problem_statement}

Tests that you cannot see decide. Changes to existing tests and to the configuration of tests do not count."""
# pip of a wheel runs where an image brings none.
_INSTALL_WHEELS = """set -e
python3 -m venv --without-pip .venv
for pip in "$PIP_FIND_LINKS"/pip-*.whl; do :; done
.venv/bin/python "$pip/pip" install --quiet pip setuptools pytest
if [ -e pyproject.toml ] || [ -e setup.py ]; then .venv/bin/python -m pip install --quiet -e .; fi
"""


class Swe:
    """Repair a repository so that given tests pass.

    Args:
        items: a file of rows (``.jsonl``, ``.json``, ``.parquet``), a directory with ``train.jsonl``, or
            ``builtin``.
        repo_base_url: where ``owner/name`` is: ``https://...``, ``file:///...`` or a directory.
        image: for items that name none; else the run's.
        wheelhouse: directory of wheels on the host, all that pip may install from: pip, setuptools and pytest too.
        install: program for ``/bin/sh`` that makes a repository ready for its tests, where an item has none;
            without a wheelhouse nothing is done.
        python: the Python that runs tests; else that of ``.venv``, else ``python3``.
        python_only: whether rows whose PASS_TO_PASS is empty or not of Python files are left out.
        prompt: file with the user's message; ``{problem_statement}``, ``{repo_dir}`` and ``{text}`` are filled in.
        shuffle_seed: shuffles the items; None keeps their order.
        max_items: the first so many.
        score_include_fail_to_pass: whether FAIL_TO_PASS counts.
        shaped: whether a state that passes only some tests is worth something, at most 0.5.
        install_timeout_s: for an installation.
        test_timeout_s: for the tests of one process.
        tests_per_process: how many that are.
        cache_dir: of repositories; else in the user's cache directory.

    Attributes:
        name: of the entry point.
    """

    name = "swe"

    def __init__(
        self,
        *,
        items: str = BUILTIN,
        repo_base_url: str | None = None,
        image: str | None = None,
        wheelhouse: str | None = None,
        install: str | None = None,
        python: str | None = None,
        python_only: bool = False,
        prompt: str | None = None,
        shuffle_seed: int | None = None,
        max_items: int | None = None,
        score_include_fail_to_pass: bool = True,
        shaped: bool = False,
        install_timeout_s: float = 600.0,
        test_timeout_s: float = 600.0,
        tests_per_process: int = 50,
        cache_dir: str | None = None,
    ) -> None:
        """Take the options; items are read when they are asked for.

        Raises:
            SpecError: an option names a file that is not there, or a number that none can be.
        """
        self._items, self._base_url, self._image = items, repo_base_url, image
        self._wheelhouse = _directory("wheelhouse", wheelhouse)
        self._install = install if install is not None else _INSTALL_WHEELS if wheelhouse else ""
        self._python = python
        _check_counts(max_items=max_items, tests_per_process=tests_per_process)
        _check_seconds(install_timeout_s=install_timeout_s, test_timeout_s=test_timeout_s)
        self._choice = {"python_only": python_only, "shuffle_seed": shuffle_seed, "max_items": max_items}
        self._prompt = _PROMPT if prompt is None else _read("prompt", prompt)
        self._fail_to_pass, self._shaped = score_include_fail_to_pass, shaped
        self._install_timeout_s, self._test_timeout_s = install_timeout_s, test_timeout_s
        self._chunk = tests_per_process
        self._repositories = Repositories(cache_dir)
        self._sound: set[str] = set()  # items whose base is known to install, and needs nothing from outside for it
        self._offline: set[str] = set()
        self._base_locks: dict[str, asyncio.Lock] = {}

    def items(self) -> Iterable[Item]:
        """Return the items in order of their rows.

        Raises:
            SpecError: a row is malformed, has no test to judge by, or shares its id with another.
        """
        directory = os.path.join(self._repositories.directory, "builtin")
        rows = builtin_rows(directory) if self._items == BUILTIN else load_rows(self._items)
        seen: set[str] = set()
        for row in choose_rows(rows, **self._choice):  # type: ignore[arg-type] # three options by name
            item = parse_row(row)
            if item.id in seen:
                raise SpecError("items", item.id, "each id once")
            if not self._wanted(item):
                lists = "FAIL_TO_PASS or PASS_TO_PASS" if self._fail_to_pass else "PASS_TO_PASS"
                raise SpecError("items", item.id, f"an item with a test to judge by, in {lists}")
            seen.add(item.id)
            yield Item(id=item.id, data=attrs.asdict(item))

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the run's container with the item's image and environment, and the wheelhouse read-only."""
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
        """Unpack a private clone at the base commit; nothing is fetched where it was fetched before."""
        one = _swe(item)
        checkout = await self._checkout(one)
        await checkout.unpack(lease, one.repo_dir)
        return {"repo_dir": one.repo_dir, "base_commit": one.base_commit}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the problem as the user's message."""
        one = _swe(item)
        text = self._prompt.replace("{repo_dir}", one.repo_dir).replace("{text}", one.text)
        return [{"role": "user", "content": text.replace("{problem_statement}", one.problem_statement)}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Lease, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Judge what the agent left, in a container that it never saw.

        Raises:
            JudgeError: not even the untouched repository can be installed or tested.
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
                return _nothing(state.problem or "nothing that counts was changed", state)
            async with fresh() as judge:
                verdict = await self._judge(one, checkout, judge, clone, state)
        if isinstance(verdict, Verdict):
            return verdict
        return await self._blame(one, checkout, fresh, state, verdict)  # needs a container of its own

    async def _judge(
        self, one: SweItem, checkout: Checkout, judge: Lease, clone: str, state: State
    ) -> Verdict | _Failure:
        """Return the verdict, or how the state did not install or its tests did not start."""
        court = Court(judge, one.env)
        await court.receive(clone, one.repo_dir, state.gone)
        installed = await self._install_in(court, one)
        if not _worked(installed):
            return _Failure(output=installed.output, timed_out=installed.timed_out)
        tested = await court.test(await self._plan(one, checkout, self._wanted(one)))
        if not tested.ran:
            return _Failure(output=tested.missing or tested.output, timed_out=False)
        return self._verdict(one, state, tested, separate=court.separate)

    async def _blame(self, one: SweItem, checkout: Checkout, fresh: Fresh, state: State, failure: _Failure) -> Verdict:
        """Say that the agent broke the installation, once it is sure that the base itself installs.

        That it did before is enough where nothing but the files can have made the difference: not where downloads or
        a machine that is too busy can.
        """
        async with self._base_locks.setdefault(one.id, asyncio.Lock()):
            if one.id not in self._sound or one.id not in self._offline or failure.timed_out:
                if problem := await self._base_problem(one, checkout, fresh):
                    why = f"its base does not install: {problem[-1000:]}"
                    raise JudgeError(f"item {one.id} cannot be judged, for {why}")
                self._sound.add(one.id)
        facts = {**_facts(state), "output": failure.output[-_TAIL:]}
        return Verdict(reward=0.0, parts={"install": 0.0}, phase="install", detail="it does not install", facts=facts)

    async def _base_problem(self, one: SweItem, checkout: Checkout, fresh: Fresh) -> str:
        with tempfile.TemporaryDirectory(prefix="hyperruntime-swe-", ignore_cleanup_errors=True) as scratch:
            clone = os.path.join(scratch, "state")
            await asyncio.to_thread(write_state, one, checkout, None, clone)
            async with fresh() as judge:
                court = Court(judge, one.env)
                await court.receive(clone, one.repo_dir, ())
                installed = await self._install_in(court, one)
                if not _worked(installed):
                    return installed.output or "no output"
                tested = await court.test(await self._plan(one, checkout, ()))
                return "" if tested.ran else tested.missing or tested.output or "the test runner does not start"

    async def _install_in(self, court: Court, one: SweItem) -> Ended:
        program = self._install if one.install is None else one.install
        if not program.strip():
            return Ended(exit_code=0, timed_out=False, output="", report="", separate=court.separate)
        return await court.run(["/bin/sh", "-c", program, "install"], timeout_s=self._install_timeout_s)

    async def _plan(self, one: SweItem, checkout: Checkout, ids: Sequence[str]) -> TestPlan:
        return TestPlan(
            ids=ids,
            runner=one.runner,
            python=one.python or self._python,
            settings=await asyncio.to_thread(pytest_settings, checkout),
            own_plugins=await asyncio.to_thread(brings_plugins, checkout),
            chunk=self._chunk,
            timeout_s=self._test_timeout_s,
        )

    def _verdict(self, one: SweItem, state: State, tested: Findings, *, separate: bool) -> Verdict:
        wanted = self._wanted(one)
        fraction = len(tested.passed) / len(wanted)
        whole = len(tested.passed) == len(wanted)
        parts = {"install": 1.0, "pass_to_pass": _part(one.pass_to_pass, tested.passed)}
        if self._fail_to_pass:
            parts["fail_to_pass"] = _part(one.fail_to_pass, tested.passed)
        failed = {name: tested.problems.get(name, "") for name in wanted if name not in tested.passed}
        facts = {**_facts(state), "separate_user": separate, "forged": tested.forged, "tests": len(wanted)}
        facts |= {"failed": dict(list(failed.items())[:_LISTED]), "output": "" if whole else tested.output[-_TAIL:]}
        detail = "every test passed" if whole else f"{len(failed)} of {len(wanted)} tests did not pass"
        if tested.forged:
            detail = "tests that must fail were reported as passed, so no test counts"
        reward = 1.0 if whole else 0.5 * fraction if self._shaped else 0.0
        return Verdict(reward=reward, parts=parts, phase="tests", detail=detail, facts=facts)

    def _wanted(self, one: SweItem) -> tuple[str, ...]:
        return tuple(sorted({*one.pass_to_pass, *(one.fail_to_pass if self._fail_to_pass else ())}))

    async def _checkout(self, one: SweItem) -> Checkout:
        source = source_of(one.repo, self._base_url)
        return await self._repositories.aprepare(source, one.base_commit)


async def _read_out(lease: Lease, repo_dir: str, target: str) -> str:
    """Copy the agent's directory to the host; return why that is impossible, where that is the agent's doing."""
    if (await lease.exec(["/bin/sh", "-c", _LEAVE, "leave", repo_dir], timeout_s=_READ_OUT_TIMEOUT_S)).exit_code != 0:
        return "the repository's directory is gone"
    try:
        await lease.get(repo_dir, target, limits=_TREE_LIMITS, timeout_s=_READ_OUT_TIMEOUT_S)
    except UnsafeArchiveError as error:
        return f"the repository's directory is too large: {error}"
    except TransferError as error:
        if isinstance(error.__cause__, OSError):
            raise  # of the host
        return f"the repository's directory cannot be read: {error}"
    return ""


def _nothing(detail: str, state: State | None = None) -> Verdict:
    return Verdict(reward=0.0, phase="agent", detail=detail, facts={} if state is None else _facts(state))


def _facts(state: State) -> dict[str, Any]:
    return {"dropped": [list(one) for one in state.dropped[:_LISTED]], "patch_bytes": state.patch_bytes}


def _part(ids: Sequence[str], passed: frozenset[str]) -> float:
    return sum(name in passed for name in ids) / len(ids) if ids else 1.0


@attrs.frozen(kw_only=True)
class _Failure:
    """That a state does not install, or its tests do not start."""

    output: str
    timed_out: bool


def _worked(ended: Ended) -> bool:
    return ended.exit_code == 0 and not ended.timed_out


def _swe(item: Item) -> SweItem:
    return SweItem(**item.data)


def _directory(option: str, path: str | None) -> str | None:
    if path is not None and not os.path.isdir(path):
        raise SpecError(f"option {option}", path, "a directory")
    return path


def _check_counts(**counts: int | None) -> None:
    for option, count in counts.items():
        if count is not None and count < 1:
            raise SpecError(f"option {option}", count, "at least 1")


def _check_seconds(**times: float) -> None:
    for option, seconds in times.items():
        if not (math.isfinite(seconds) and seconds > 0):
            raise SpecError(f"option {option}", seconds, "a number of seconds above 0")


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpecError(f"option {option}", path, f"a readable text file ({why})") from None


_environment: type[Environment] = Swe
