"""The environment class: its options, the agent's prompt, and the judging of the agent's work."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperenvironment_swe.controls import make_controls, make_variations
from hyperenvironment_swe.items import (
    SweItem,
    builtin_rows,
    check_repo_dir,
    image_of,
    is_python,
    load_rows,
    parse_row,
    row_id,
)
from hyperenvironment_swe.judging import (
    UNKNOWN_TEST,
    Court,
    Findings,
    JudgeError,
    Trial,
    base_faults,
    not_installed,
    nothing,
    verdict,
)
from hyperenvironment_swe.locate import is_cut, locate_tests
from hyperenvironment_swe.state import State, files_of_tests, pytest_settings, read_out, write_state
from hyperruntime.datasets.left_out import SKIP, UNSUPPORTED, LeftOut
from hyperruntime.errors import SpecError
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.logs import get_logger
from hyperruntime.option_fields import ABOVE_ZERO, AtLeast
from hyperruntime.rollout.environment import EnvironmentBase, Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.origins import source_of
from hyperruntime.rollout.repositories import Checkout, Repositories
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import Mount
from hyperruntime.storage.text_file import read_utf8

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)

BUILTIN = "builtin"
WHEELHOUSE = "/opt/hyperruntime/wheelhouse"
_CONTROLS = 4
# pytest's settings of the base; beside the state, so that paths in them are right
_SETTINGS = ".hyperruntime-tests"
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
class Swe(EnvironmentBase):
    """Repair a repository so that given tests pass.

    Args:
        items: a file of rows (``.jsonl``, ``.json``, ``.parquet``), a directory with
            ``train.jsonl`` or ``data/*.parquet``, or ``builtin``.
        split: the split of a directory of Parquet files; None means the only one.
        repo_base_url: base of ``owner/name``: ``https://...``, ``file:///...`` or a directory.
        image: image of items without one; None means the run's image.
        image_template: image of all items: text with ``{id}``, ``{id_1776}`` or ``{image_name}``;
            None means no change.
        repo_dir: directory of the repository for items without one, such as ``/testbed``; None
            means its name.
        wheelhouse: host directory of wheels, the only source of pip; it must have pip, setuptools
            and pytest too.
        install: ``/bin/sh`` program that prepares a repository for its tests, for items without
            one; None installs from the wheelhouse, or does nothing without a wheelhouse.
        python: the Python that runs tests; None means that of ``.venv``, or else ``python3``.
        python_only: whether to skip rows whose PASS_TO_PASS is empty or has tests outside Python
            files.
        prompt: file with the user's message; ``{problem_statement}``, ``{repo_dir}`` and ``{text}``
            are replaced.
        shuffle_seed: shuffles the items; None keeps their order.
        max_items: maximum number of items, from the first; None means all.
        score_include_fail_to_pass: whether FAIL_TO_PASS counts.
        shaped: whether a state that passes only some tests gets a partial reward of at most 0.5.
        install_timeout_s: timeout of an installation.
        test_timeout_s: timeout of each process that runs tests, and of each 50 tests together.
        tests_per_process: maximum number of tests in one process; more than 1 is faster, but lets a
            test see what other tests did, and one forged report covers several tests.
        cache_dir: directory of the repository cache; None means the user's cache directory.
        unsupported: ``skip``: leave out rows that are invalid or have no tests; ``fail``: reject
            the file.

    Attributes:
        name: name of the entry point.
    """

    name = "swe"
    _items: str = BUILTIN
    _split: str | None = None
    _repo_base_url: str | None = None
    _image: str | None = None
    _image_template: str | None = None
    _repo_dir: str | None = None
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
    tests_per_process: int = attrs.field(default=1, validator=AtLeast(1))
    _cache_dir: str | None = None
    unsupported: str = attrs.field(default=SKIP, validator=UNSUPPORTED)
    _left: LeftOut = attrs.field(init=False)
    _repositories: Repositories = attrs.field(init=False)
    # ids of items whose base is known to install
    _sound: set[str] = attrs.field(init=False, factory=set)
    _offline: set[str] = attrs.field(init=False, factory=set)
    # tests that a base passes or skips
    _on_base: dict[str, dict[str, str]] = attrs.field(init=False, factory=dict)
    _located: dict[str, Mapping[str, tuple[str, ...]]] = attrs.field(init=False, factory=dict)
    _told: bool = attrs.field(init=False, default=False)
    _base_locks: dict[str, asyncio.Lock] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Validate the options; ``items`` reads the rows.

        Raises:
            SpecError: an option names a missing file or directory, or a number is out of range.
        """
        if self._wheelhouse is not None and not os.path.isdir(self._wheelhouse):
            raise SpecError("option wheelhouse", self._wheelhouse, "a directory")
        if self._repo_dir is not None:
            check_repo_dir(self._repo_dir)
        self._prompt = _PROMPT if self._prompt is None else _read_prompt(self._prompt)
        self._repositories = Repositories(self._cache_dir)
        self._left = LeftOut(self.unsupported)

    def items(self) -> Iterable[Item]:
        """Yield the items in the order of their rows.

        Raises:
            SpecError: a row is invalid or has no tests, or two rows have the same id, and
                ``unsupported`` is ``fail``; or no row is left.
        """
        self._left = LeftOut(self.unsupported)
        count = 0
        for item in islice(self._read_items(self._left), self.max_items):
            count += 1
            yield Item(id=item.id, data=attrs.asdict(item))
        self._left.check_any(count, "items", self._items)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why rows are not among the items that were read last, by id."""
        return self._left.reasons

    def _read_items(self, left: LeftOut) -> Iterator[SweItem]:
        directory = os.path.join(self._repositories.directory, "builtin")
        found = (
            builtin_rows(directory)
            if self._items == BUILTIN
            else load_rows(self._items, self._split, left)
        )
        rows: Iterable[dict[str, Any]] = found
        if self._shuffle_seed is not None:
            rows = list(rows)
            random.Random(self._shuffle_seed).shuffle(rows)  # noqa: S311 - an order, not a secret
        seen: set[str] = set()
        for number, row in enumerate(rows, 1):
            item = None
            with left.reading(row_id(row) or f"row {number} without an id"):
                item = self._read_item(row, seen)
            if item is not None:
                seen.add(item.id)
                yield item

    def _read_item(self, row: Mapping[str, Any], seen: Collection[str]) -> SweItem | None:
        """Return the item of a row, or None if ``python_only`` skips it."""
        if self._python_only and not is_python(row):
            return None
        item = parse_row(row, self._repo_dir)
        if item.id in seen:
            raise SpecError("items", item.id, "a unique id")
        if not self._wanted(item):
            lists = (
                "FAIL_TO_PASS or PASS_TO_PASS"
                if self._score_include_fail_to_pass
                else "PASS_TO_PASS"
            )
            raise SpecError("items", item.id, f"an item with at least one test in {lists}")
        return item

    def cache_key(self, item: Item) -> str:
        """Return the item's repository: a node that has it is preferred."""
        return str(item.data["repo"])

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the base spec with the item's image and environment, and a read-only mount of the
        wheelhouse.

        Args:
            item: the item.
            base: the run's container spec.
            images: the store that builds and finds images.
        """
        one = _swe(item)
        if base.network == "none":
            self._offline.add(one.id)
        image = one.image or self._image
        if self._image_template is not None:
            image = image_of(one, self._image_template)
        spec = attrs.evolve(base, image=images.ensure(image) if image else base.image)
        if self._wheelhouse is None:
            return attrs.evolve(spec, env={**spec.env, **one.env})
        mount = Mount(source=self._wheelhouse, target=WHEELHOUSE, read_only=True)
        pip = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": WHEELHOUSE,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        return attrs.evolve(spec, mounts=(*spec.mounts, mount), env={**spec.env, **pip, **one.env})

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        """Unpack a private clone at the base commit in the agent's workspace; fetch it if it is not
        cached.

        Args:
            item: the item.
            lease: the agent's slot.

        Raises:
            SpecError: an id of the item means no test that can be run.
            RepositoryError: the repository cannot be fetched.
            TransferError: the clone could not be unpacked in the slot.
        """
        one = _swe(item)
        checkout, _ = await self._prepared(one)
        await checkout.unpack(lease, one.repo_dir)
        return {"repo_dir": one.repo_dir, "base_commit": checkout.commit}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the problem as the user's message.

        Args:
            item: the item.
            meta: the value that ``setup`` returned.
        """
        one = _swe(item)
        assert self._prompt is not None, "set after construction"
        text = self._prompt.replace("{repo_dir}", one.repo_dir).replace("{text}", one.text)
        return [
            {"role": "user", "content": text.replace("{problem_statement}", one.problem_statement)}
        ]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
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
            SpecError: an id of the item means no test that can be run.
        """
        one = _swe(item)
        if outcome.tool_calls == 0:
            return nothing("no tool was called")
        checkout, located = await self._prepared(one)
        tests = {name: located[name] for name in self._wanted(one)}
        with tempfile.TemporaryDirectory(
            prefix="hyperruntime-swe-", ignore_cleanup_errors=True
        ) as scratch:
            tree = os.path.join(scratch, "agent")
            clone = os.path.join(scratch, "state")
            try:
                problem, left = await read_out(lease, one.repo_dir, tree)
                if problem:
                    return nothing(problem)
                protected = {test for names in located.values() for test in names}
                state = await asyncio.to_thread(
                    write_state, one, checkout, tree, clone, tests=protected, left=left
                )
            finally:
                await asyncio.to_thread(remove_tree, tree)
            if state.problem or not state.changed:
                return nothing(state.problem or "no change that counts was made", state)
            tested = await self._test(
                one,
                checkout,
                fresh,
                clone,
                state,
                sorted({test for means in tests.values() for test in means}),
            )
        if not tested.ran:
            return await self._blame(one, checkout, fresh, state, tested)
        skipped = await self._skipped(one, checkout, located, fresh, tested)
        return verdict(one, state, tested, tests, skipped=skipped, shaped=self._shaped)

    async def _test(
        self,
        one: SweItem,
        checkout: Checkout,
        fresh: Fresh,
        clone: str,
        state: State,
        ids: Sequence[str],
    ) -> Findings:
        """Install a state in a fresh container and run tests; without ``ids``, check that the test
        runner starts.
        """
        trial = await asyncio.to_thread(self._trial, one, checkout, clone, state, tuple(ids))
        async with fresh() as judge:
            court = Court(judge, one.env)
            await court.receive(clone, one.repo_dir)
            findings = await court.judge(trial, state.gone)
        self._tell(findings)
        return findings

    def _trial(
        self, one: SweItem, checkout: Checkout, clone: str, state: State, ids: tuple[str, ...]
    ) -> Trial:
        """Return what to run; only an agent's state has controls and variations: code of the base
        forges nothing.
        """
        (suffix, settings), own_plugins = pytest_settings(checkout)
        located = self._located[one.id]
        every = {test for means in located.values() for test in means}
        files = {**files_of_tests(one, every, clone), f"{_SETTINGS}{suffix}": settings}
        repaired = {test for name in one.fail_to_pass for test in located[name]}
        first = [name for name in ids if name in repaired]
        more = [name for name in ids if name not in repaired]
        chance = random.SystemRandom()
        controls = make_controls(first, more, files, _CONTROLS, chance) if state.changed else []
        return Trial(
            install=self._program(one),
            install_timeout_s=self.install_timeout_s,
            ids=ids,
            cut=frozenset(filter(is_cut, ids)),
            controls=tuple(controls),
            files=files,
            variations=make_variations(every, controls, files, chance) if state.changed else {},
            common={
                "runner": one.runner,
                "settings": f"{_SETTINGS}{suffix}",
                "own_plugins": own_plugins,
            },
            python=one.python or self._python,
            per_process=self.tests_per_process,
            timeout_s=self.test_timeout_s,
        )

    def _tell(self, findings: Findings) -> None:
        """Warn once if the engine gives the judge no user of its own."""
        if not self._told and not findings.protections["separate_user"]:
            self._told = True
            log.warning(
                "this engine gives the judge no user of its own, so code of the agent is "
                "judged by the same user: a reward is easier to forge (SECURITY.md); use "
                "root's Podman or Docker, or rootless Podman",
                protections=dict(findings.protections),
            )

    def _program(self, one: SweItem) -> str:
        """Return the program that installs an item, or ""."""
        for program in (one.install, self._install):
            if program is not None:
                return program
        return _INSTALL_WHEELS if self._wheelhouse else ""

    async def _blame(
        self, one: SweItem, checkout: Checkout, fresh: Fresh, state: State, failure: Findings
    ) -> Verdict:
        """Return a verdict against the agent, after checking that the base itself installs.

        An earlier successful check is reused only if containers have no network and the failure was
        not a timeout, because downloads and a busy machine can also cause failures.
        """
        async with self._base_locks.setdefault(one.id, asyncio.Lock()):
            if one.id not in self._sound or one.id not in self._offline or failure.timed_out:
                await self._test_base(one, checkout, fresh, ())
                self._sound.add(one.id)
        return not_installed(state, failure)

    async def _skipped(
        self,
        one: SweItem,
        checkout: Checkout,
        located: Mapping[str, tuple[str, ...]],
        fresh: Fresh,
        tested: Findings,
    ) -> frozenset[str]:
        """Return the tests of PASS_TO_PASS that the base skips too, so that their result says
        nothing about the agent.

        The base runs those tests of PASS_TO_PASS that did not pass, and those that the test runner
        does not know.

        Raises:
            JudgeError: a test of PASS_TO_PASS does not pass on the base either, or is unknown to
                the test runner.
        """
        keep = {test for name in one.pass_to_pass for test in located[name]}
        doubtful = sorted(
            test for test, why in tested.problems.items() if test in keep or why == UNKNOWN_TEST
        )
        if tested.unfailed or not doubtful:
            return frozenset()
        async with self._base_locks.setdefault(one.id, asyncio.Lock()):
            known = self._on_base.setdefault(one.id, {})
            if asked := [test for test in doubtful if test not in known]:
                based = await self._test_base(one, checkout, fresh, asked)
                problems = {test: based.problems.get(test, "") for test in asked}
                if faults := base_faults(problems, keep):
                    raise JudgeError(
                        f"item {one.id} cannot be judged here: {len(faults)} of its tests "
                        "cannot pass for any agent, because they do not pass on its base: "
                        f"{faults[0]} ({problems[faults[0]][-500:]}); the tests printed: "
                        f"{based.output[-500:]}"
                    )
                known |= problems
        return frozenset(test for test in doubtful if test in keep and known[test])

    async def _test_base(
        self, one: SweItem, checkout: Checkout, fresh: Fresh, ids: Sequence[str]
    ) -> Findings:
        """Install the base with the item's tests, and run tests.

        Raises:
            JudgeError: it does not install, or has no test runner.
        """
        with tempfile.TemporaryDirectory(
            prefix="hyperruntime-swe-", ignore_cleanup_errors=True
        ) as scratch:
            clone = os.path.join(scratch, "state")
            base = await asyncio.to_thread(write_state, one, checkout, None, clone)
            tested = await self._test(one, checkout, fresh, clone, base, ids)
        if not tested.ran:
            why = f"its base does not install: {(tested.output or 'no output')[-1000:]}"
            raise JudgeError(f"item {one.id} cannot be judged, because {why}")
        return tested

    def _wanted(self, one: SweItem) -> tuple[str, ...]:
        return tuple(
            sorted(
                {*one.pass_to_pass, *(one.fail_to_pass if self._score_include_fail_to_pass else ())}
            )
        )

    async def _prepared(self, one: SweItem) -> tuple[Checkout, Mapping[str, tuple[str, ...]]]:
        """Return an item's base, and the tests that each of its ids means."""
        source = source_of(one.repo, self._repo_base_url)
        checkout = await self._repositories.aprepare(source, one.base_commit, one.bug_patch)
        if one.id not in self._located:
            self._located[one.id] = await asyncio.to_thread(locate_tests, one, checkout)
        return checkout, self._located[one.id]


def _swe(item: Item) -> SweItem:
    return SweItem(**item.data)


def _read_prompt(path: str) -> str:
    return read_utf8(Path(path), "option prompt")
