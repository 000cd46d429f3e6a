"""The environment ``terminal``: an agent works in a shell of a container; the final files are
judged.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from hyperenvironment_terminal.carry import StateError, carry
from hyperenvironment_terminal.compose import ROOT
from hyperenvironment_terminal.image import task_image, task_services
from hyperenvironment_terminal.judge import (
    Control,
    Finding,
    VerifierError,
    control_run,
    run_tests,
    solve,
)
from hyperenvironment_terminal.load import BUILTIN, load_tasks
from hyperenvironment_terminal.task import (
    FRESH,
    SAME,
    TEST_BEGINNING,
    Task,
    check_network,
    describe,
    networks,
)
from hyperenvironment_terminal.users import agents_lease, check_users
from hyperruntime.datasets.left_out import SKIP, UNSUPPORTED, LeftOut
from hyperruntime.errors import SpecError, TransferError
from hyperruntime.images.store import ImageStore
from hyperruntime.network.egress import Egress, Network
from hyperruntime.option_fields import ABOVE_ZERO, AtLeast, OneOf
from hyperruntime.rollout.environment import EnvironmentBase, Fresh, Item, Outcome, Verdict
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec, ExecResult
from hyperruntime.transfer.extract import DEFAULT_MAX_MEMBERS

_LIMIT_BYTES = 1024**3
_TEMPLATE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SYSTEM = """\
You work at a shell in a Linux container, as {user}, through tools; nobody else uses it and nobody answers questions. \
Commands begin in {workdir}. Do what the task says, look that it is done, and then answer in words without a tool \
call. What counts is the state of the files that you leave: processes that you started are ended before it is \
tested{system}."""
_FILES_ONLY = ", and changes to installed programs and libraries do not count"


@attrs.define
class Terminal(EnvironmentBase):
    """Terminal tasks in the formats of Harbor (Terminal-Bench 2) and endless-terminals.

    Args:
        tasks: a task directory, a directory of them, a ``.jsonl`` file, or ``builtin``.
        verify: ``fresh``: test in a new container of the task's image, with the agent's files
            except those that could influence the tests; ``same``: test in the agent's container;
            None: the task's choice, or ``fresh``.
        resources: ``task``: use the task's limits, and fail if the engine cannot enforce them;
            ``base``: use the run's limits.
        internet: ``task``: reject a task that needs the internet if the run has no network;
            ``base``: run it without network.
        control: whether the first reward 0 of a task is checked by a control run: its known
            solution must get more, else the tests cannot run here.
        control_timeout_s: timeout of the known solution in a control run; a longer one leaves the
            reward 0 unchecked.
        substitute: ``NAME=IMAGE``: use IMAGE if a task names the image NAME.
        pass_env: names of host variables that tasks may read.
        pull: whether to pull images that tasks name.
        limit_bytes: maximum bytes of an agent's files that are copied to a fresh container.
        limit_files: maximum number of these files, with directories and links.
        unsupported: ``skip``: leave out tasks that are invalid or not supported; ``fail``: reject
            the source.

    Attributes:
        name: name of the entry point.
        image_workdir: True, because tasks begin in the working directory of their image.

    Raises:
        SpecError: an option is invalid, or no task is supported.
    """

    name = "terminal"
    slots_per_container = 1  # the tests need root in the agent's container
    image_workdir = True
    _source: str = attrs.field(default=BUILTIN, alias="tasks")
    _verify: str | None = None
    resources: str = attrs.field(default="task", validator=OneOf(("task", "base")))
    internet: str = attrs.field(default="task", validator=OneOf(("task", "base")))
    _control: bool = True
    control_timeout_s: float = attrs.field(default=600.0, validator=ABOVE_ZERO)
    _substitute: tuple[str, ...] = ()
    _pass_env: tuple[str, ...] = ()
    _pull: bool = False
    limit_bytes: int = attrs.field(default=_LIMIT_BYTES, validator=AtLeast(0))
    limit_files: int = attrs.field(default=DEFAULT_MAX_MEMBERS, validator=AtLeast(0))
    unsupported: str = attrs.field(default=SKIP, validator=UNSUPPORTED)
    _left: LeftOut = attrs.field(init=False)
    _substitutes: dict[str, str] = attrs.field(init=False)
    _tasks: dict[str, Task] = attrs.field(init=False)
    _specs: dict[str, ContainerSpec] = attrs.field(init=False, factory=dict)  # of agents
    _tests_networks: dict[str, Network | Egress] = attrs.field(init=False, factory=dict)
    _controls: dict[str, Control] = attrs.field(init=False, factory=dict)
    _locks: dict[str, asyncio.Lock] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Read the tasks."""
        if self._verify not in (None, SAME, FRESH):
            raise SpecError("option verify", self._verify, f"{SAME} or {FRESH}")
        self._substitutes = dict(_pair(text) for text in self._substitute)
        self._left = LeftOut(self.unsupported)
        self._tasks = dict[str, Task]()
        for task in load_tasks(self._source, self._left):
            with self._left.reading(task.id):
                for given in (task.env, task.verifier_env):
                    self._env(task, given)
                self._tasks[task.id] = task
        self._left.check_any(len(self._tasks), "tasks", self._source)

    def items(self) -> Iterable[Item]:
        """Return the tasks."""
        return [
            Item(id=name, data={"instruction": task.instruction})
            for name, task in self._tasks.items()
        ]

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why tasks of the source are not among the items, by name."""
        return self._left.reasons

    def time_limit_s(self, item: Item) -> float | None:
        """Return the task's time limit for the agent, or None."""
        return self._tasks[item.id].agent_timeout_s

    def check_items(self, items: Sequence[Item], base: ContainerSpec) -> None:
        """Check that a run has what its tasks need, before any container starts.

        Args:
            items: the tasks.
            base: the run's container spec.

        Raises:
            SpecError: a task needs a network that the run does not provide.
        """
        tasks = [self._tasks[item.id] for item in items]
        if self.internet == "task":
            check_network(tasks, base)
        for task in tasks:
            if self._mode(task) == SAME and len(set(networks(task, base))) > 1:
                raise SpecError(
                    f"verify of task {task.id!r}",
                    SAME,
                    "fresh, because its tests have another network than its agent",
                )

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the task's container spec, and build or pull its image if it is missing.

        Args:
            item: the task.
            base: the run's container spec.
            images: the store that builds and finds images.

        Raises:
            SpecError: the task needs a network that the run does not provide.
            ImageError: the image does not exist, or its build or pull failed.
        """
        task = self._tasks[item.id]
        self.check_items([item], base)
        network, tests_network = networks(task, base)
        env = {**base.env, **self._env(task, task.env)}
        image = task_image(task, images, self._substitutes, pull=self._pull)
        spec = attrs.evolve(
            base, image=image, workdir=task.workdir or None, env=env, network=network
        )
        if task.services:
            services = task_services(task, images, self._substitutes, pull=self._pull)
            spec = attrs.evolve(spec, services=services, host_names=task.host_names)
        if self.resources == "task":
            gpus = f"auto:{task.gpus}" if task.gpus else base.gpus
            spec = attrs.evolve(spec, limits=attrs.evolve(base.limits, **task.limits), gpus=gpus)
        if task.agent_user or task.tests_user:
            spec = attrs.evolve(spec, user="0:0")  # only root runs commands as others
        self._specs[item.id] = spec
        self._tests_networks[item.id] = tests_network
        return spec

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        """Check that the slot runs as root, and that the image has the task's users and what
        ``verify`` needs.

        Args:
            item: the task.
            lease: the agent's slot.

        Raises:
            TaskUserError, VerifierError: a check failed.
        """
        task = self._tasks[item.id]
        script = "id -u; command -v find tar xargs >/dev/null && find / -maxdepth 0 -printf yes"
        result = await lease.exec(["/bin/sh", "-c", script], workdir="/")
        user, _, found = result.stdout.decode(errors="replace").partition("\n")
        if user != "0":
            raise VerifierError(
                f"task {item.id!r} needs root, but its slot runs as user {user}; use one slot "
                "per container"
            )
        if self._mode(task) == FRESH and found != "yes":
            raise VerifierError(
                f"the image of task {item.id!r} lacks GNU find, tar or xargs, which "
                "verify='fresh' needs; add them, or use --option verify=same"
            )
        await check_users(task, lease)
        return {"verify": self._mode(task), "workdir": lease.slot.workspace}

    async def agent_lease(self, item: Item, lease: Sandbox, meta: Mapping[str, Any]) -> Sandbox:
        """Return the lease with which the agent's tools work: as the task's user, or as root.

        Args:
            item: the task.
            lease: the agent's slot.
            meta: the value that ``setup`` returned.
        """
        return await agents_lease(self._tasks[item.id], lease)

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the system message and the task's instruction.

        Args:
            item: the task.
            meta: the value that ``setup`` returned.
        """
        task = self._tasks[item.id]
        user = f"the user {task.agent_user}" if task.agent_user not in ("", ROOT) else ROOT
        system = _FILES_ONLY if self._mode(task) == FRESH else ""
        system = _SYSTEM.format(user=user, workdir=meta["workdir"], system=system)
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": task.instruction},
        ]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Run the task's tests and return their reward.

        Args:
            item: the task.
            outcome: how the agent's conversation ended.
            lease: the agent's slot.
            fresh: provides unused containers.
            meta: the value that ``setup`` returned.

        Raises:
            VerifierError: the tests reach no verdict, neither with the agent's work nor without it.
        """
        task = self._tasks[item.id]
        mode = self._mode(self._tasks[item.id])
        if outcome.tool_calls == 0:
            return _verdict(0.0, "agent", "no tool was called", {"verify": mode})
        env = self._env(task, task.verifier_env)
        if mode == SAME:
            try:
                finding = await run_tests(task, lease, env)
            except (VerifierError, TransferError) as error:
                finding = Finding(
                    rewards={}, exit_code=-1, timed_out=False, output=str(error), duration_s=0.0
                )
            return await self._conclude(task, fresh, env, finding, {"verify": SAME})
        mounts = self._specs[task.id].mounts if task.id in self._specs else ()
        async with fresh(self._tests_spec(task)) as judge:
            try:
                carried = await carry(
                    lease,
                    judge,
                    mounted=tuple(mount.target for mount in mounts),
                    workdir=judge.slot.workspace,
                    scripted=not task.uses_pytest,
                    limit_bytes=self.limit_bytes,
                    limit_files=self.limit_files,
                )
            except StateError as error:
                return _verdict(0.0, "state", str(error), {"verify": FRESH})
            finding = await run_tests(task, judge, env)
        return await self._conclude(task, fresh, env, finding, {"verify": FRESH, **carried})

    async def solve(self, item: Item, lease: Sandbox) -> ExecResult:
        """Run the task's known solution in a slot, within the agent's time limit.

        Args:
            item: the task.
            lease: the slot.

        Raises:
            SpecError: the task has no known solution.
        """
        task = self._tasks[item.id]
        return await solve(task, lease, self._env(task, task.solution_env), task.agent_timeout_s)

    def needs(self, item: Item) -> str:
        """Return what a task needs from a run, as a list for people; "" for nothing special."""
        return describe(self._tasks[item.id])

    def has_solution(self, item: Item) -> bool:
        """Return whether a task has a known solution."""
        return self._tasks[item.id].solution is not None

    async def begins_right(self, item: Item, lease: Sandbox) -> bool | None:
        """Run the task's test of the initial state, and return whether it passes; None if the task
        has no such test.

        Args:
            item: the task.
            lease: an unused container.
        """
        task = self._tasks[item.id]
        if not (task.tests / TEST_BEGINNING).is_file():
            return None
        finding = await run_tests(task, lease, self._env(task, task.verifier_env), beginning=True)
        return finding.rewards == {"reward": 1.0}

    def _mode(self, task: Task) -> str:
        # a fresh container would have fresh services, without what the agent did to them
        return self._verify or task.verify or (SAME if task.services else FRESH)

    def _tests_spec(self, task: Task, *, for_solution: bool = False) -> ContainerSpec | None:
        """Return the container spec of a task's tests, or None for the agent's; a solution gets the
        network of both.
        """
        spec = self._specs.get(task.id)
        network = self._tests_networks.get(task.id)
        if (
            spec is None
            or network is None
            or network == spec.network
            or (for_solution and network == "none")
        ):
            return None
        return attrs.evolve(spec, network=network)

    async def _conclude(
        self,
        task: Task,
        fresh: Fresh,
        env: Mapping[str, str],
        finding: Finding,
        facts: Mapping[str, Any],
    ) -> Verdict:
        """Return the verdict; a control run decides whether a missing reward or a reward 0 is the
        agent's failure.
        """
        facts = {**facts, **attrs.asdict(finding, filter=attrs.filters.exclude("rewards"))}
        if finding.rewards:
            reward = finding.rewards["reward"]
            if reward > 0:
                self._controls[task.id] = Control(
                    works=True, detail="an agent had a reward above 0"
                )
            elif self._control:
                facts["control"] = await self._checked(task, fresh, env)
            return Verdict(
                reward=reward,
                parts=finding.rewards,
                phase="tests",
                detail=_detail(reward, facts),
                facts=facts,
            )
        async with fresh(self._tests_spec(task)) as judge:
            control = await run_tests(task, judge, env)
        why = (
            f"did not end in {task.verifier_timeout_s:g} s"
            if finding.timed_out
            else "gave no reward"
        )
        if not control.rewards:
            raise VerifierError(
                f"the tests of task {task.id!r} {why}, and give no reward without the agent's "
                f"work (exit code {control.exit_code}): "
                f"{control.output[-500:].strip() or 'no output'}"
            )
        return _verdict(
            0.0, "tests", f"the tests {why}; without the agent's work they give a reward", facts
        )

    async def _checked(self, task: Task, fresh: Fresh, env: Mapping[str, str]) -> str:
        """Return how a control run, one for each task, showed that a reward 0 is valid.

        Raises:
            VerifierError: the control run showed that the tests cannot run here.
        """
        async with self._locks.setdefault(task.id, asyncio.Lock()):
            if task.id not in self._controls:
                solution_env = self._env(task, task.solution_env) if task.solution else {}
                async with fresh(self._tests_spec(task, for_solution=True)) as judge:
                    found = await control_run(
                        task, judge, env, solution_env, self.control_timeout_s
                    )
                self._controls.setdefault(task.id, found)
        control = self._controls[task.id]
        if not control.works:
            raise VerifierError(
                f"the reward 0 of task {task.id!r} says nothing about the agent, because its "
                f"tests cannot run here: {control.detail}; needs: "
                f"{describe(task) or 'nothing special'}; fix this and resume, or accept such "
                "rewards with --option control=no"
            )
        return control.detail

    def _env(self, task: Task, given: Mapping[str, str]) -> dict[str, str]:
        """Return variables with the values of the host variables that ``pass_env`` allows."""

        def value(match: re.Match[str]) -> str:
            if match[1] in self._pass_env and match[1] in os.environ:
                return os.environ[match[1]]
            if match[2] is None:
                allowed = (
                    f"a host variable that is set and allowed with --option pass_env={match[1]}"
                )
                raise SpecError(f"task {task.id!r}", match[0], allowed)
            return match[2]

        return {name: _TEMPLATE.sub(value, text) for name, text in given.items()}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise SpecError("option substitute", text, "NAME=IMAGE")
    return name, value


def _verdict(reward: float, phase: str, detail: str, facts: Mapping[str, Any]) -> Verdict:
    return Verdict(reward=reward, parts={"reward": reward}, phase=phase, detail=detail, facts=facts)


def _detail(reward: float, facts: Mapping[str, Any]) -> str:
    withheld = facts.get("withheld_count", 0)
    if withheld and reward < 1:
        return f"reward {reward:g}; {withheld} changes to protected files were not copied"
    return f"reward {reward:g}"
