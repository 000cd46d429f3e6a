"""Run a state's installation and tests in a fresh container, read the result of each test, and turn
the results into a verdict.

Code of the state (the candidate) runs as one user; a process of another user returns its reports.
Each test runs in a process of its own. For what the candidate could still forge, see SECURITY.md.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import attrs

from hyperenvironment_swe.controls import Control, Variation
from hyperenvironment_swe.items import SweItem
from hyperenvironment_swe.state import State
from hyperruntime.errors import HyperRuntimeError, TransferError
from hyperruntime.json_values import json_object
from hyperruntime.rollout.environment import Verdict
from hyperruntime.sandbox import Sandbox

# What is reported of a test that pytest does not know: it ends normally, without a report.
UNKNOWN_TEST = "not reported: the test runner does not know this test"
_NOTHING_RAN = (4, 5)  # exit codes of pytest: no test has such an id; no test was collected
_MARGIN_S = 60.0
_PREPARE_S = 600.0
_TESTS_PER_TIMEOUT = 50
_ANSWER_BYTES = 128 * 1024 * 1024
# What is reported of tests that skip themselves, or are expected to fail. A skip is not a failure.
_NO_RESULT = ("setup skipped", "call skipped", "call passed")
_LISTED = 20
_TAIL = 4000
_ROOT = "/hyperruntime-judge"
_MAKE_ROOT = f"mkdir -m 755 {_ROOT} 2>/dev/null && echo {_ROOT} || {{ chmod 755 . && pwd; }}"
_PYTHON = 'if [ -x .venv/bin/python ]; then exec .venv/bin/python "$@"; fi; exec python3 "$@"'


class JudgeError(HyperRuntimeError):
    """A state could not be judged, and the agent did not cause this."""


@attrs.frozen(kw_only=True)
class Ended:
    """The result of a command of the candidate, or of a process that ran tests.

    Attributes:
        exit_code: exit code; negative if a signal killed the command.
        timed_out: whether it was killed at its deadline.
        output: tail of its output.
        report: content of the report pipe.
    """

    exit_code: int
    timed_out: bool
    output: str
    report: str = ""


@attrs.frozen(kw_only=True)
class Findings:
    """The results of tests.

    Attributes:
        ran: whether the test runner started.
        passed: ids of the tests that passed.
        problems: why the other tests did not pass, by id.
        unfailed: ids of the control tests that did not fail, although they must; then no test
            counts.
        output: tail of the output of the last process that failed, or why the test runner is
            missing.
        timed_out: whether the installation was killed at its deadline; then no test ran.
        protections: which protections held, by name; see docs/swe.md.
    """

    ran: bool
    passed: frozenset[str] = frozenset()
    problems: Mapping[str, str] = attrs.field(factory=dict)
    unfailed: tuple[str, ...] = ()
    output: str = ""
    timed_out: bool = False
    protections: Mapping[str, bool | int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Trial:
    """The installation and the tests of a state.

    Attributes:
        install: ``/bin/sh`` program of the installation, or "".
        install_timeout_s: timeout of the installation.
        ids: ids of the tests; without any, only the start of the test runner is checked.
        cut: those ids that end at a space in their parameters; each means all tests that begin so.
        controls: changed tests, which must fail.
        files: content of the files of tests, by path; they are written again where the candidate
            changed them.
        variations: what may vary in those files each time they are written, by path.
        common: ``runner``, ``settings`` (a path in ``files``) and ``own_plugins`` for
            ``inside/launch.py``.
        python: the Python that runs the tests; None means that of ``.venv``, or else ``python3``.
        per_process: maximum number of tests in one process.
        timeout_s: timeout of one process, and of each 50 tests together.
    """

    install: str = ""
    install_timeout_s: float = 600.0
    ids: tuple[str, ...] = ()
    cut: frozenset[str] = frozenset()
    controls: tuple[Control, ...] = ()
    files: Mapping[str, str] = attrs.field(factory=dict)
    variations: Mapping[str, Variation] = attrs.field(factory=dict)
    common: Mapping[str, Any]
    python: str | None = None
    per_process: int = 1
    timeout_s: float = 600.0

    @property
    def total_s(self) -> float:
        """Return the timeout of all tests together."""
        return self.timeout_s * (
            1 + (len(self.ids) + len(self.controls) * self.per_process) // _TESTS_PER_TIMEOUT
        )

    def runs(self) -> list[tuple[tuple[str, ...], Control | None]]:
        """Return the ids of each process in order, with the controls at random places among them.

        The process of a control runs the ids of the process of its test, so their number says
        nothing either.
        """
        size = self.per_process
        runs: list[tuple[tuple[str, ...], Control | None]]
        groups = [self.ids[at : at + size] for at in range(0, len(self.ids), size)]
        runs = [(group, None) for group in groups]
        for control in self.controls:
            group = next(group for group in groups if control.id in group)
            runs.insert(random.SystemRandom().randint(0, len(runs)), (group, control))
        return runs

    def question(self, runs: Sequence[tuple[tuple[str, ...], Control | None]]) -> dict[str, Any]:
        """Return the installation and the tests as ``inside/judge.py`` reads them."""
        program = [self.python] if self.python else ["/bin/sh", "-c", _PYTHON, "python"]
        tests = {
            "args": [*program, "-c", _source("launch.py")],
            "common": self.common,
            "files": self.files,
            "variations": {
                path: attrs.asdict(one, recurse=False) for path, one in self.variations.items()
            },
            "runs": [self._run(ids, made) for ids, made in runs],
            "timeout_s": self.timeout_s,
            "total_s": self.total_s,
        }
        args = ["/bin/sh", "-c", self.install, "install"]
        install = (
            {"args": args, "timeout_s": self.install_timeout_s} if self.install.strip() else None
        )
        return {"install": install, "tests": tests}

    def _run(self, ids: Sequence[str], control: Control | None) -> dict[str, Any]:
        cut = [name for name in ids if name in self.cut]
        return {"ids": ids, "cut": cut, "changed": {control.path: control.edits} if control else {}}


class Court:
    """A fresh container with a state in it."""

    def __init__(self, lease: Sandbox, env: Mapping[str, str]) -> None:
        """Set the container and the candidate's environment.

        Args:
            lease: the container.
            env: environment variables of the candidate's commands.
        """
        self._lease = lease
        self._env = env
        self._tree = self._home = ""

    async def receive(self, clone: str, repo_dir: str) -> None:
        """Copy a state into the container, over the files of the image.

        Args:
            clone: directory of the state on the host.
            repo_dir: target: absolute, or relative to the judge's directory.

        Raises:
            JudgeError: the files cannot be written.
        """
        made = await self._lease.exec(["/bin/sh", "-c", _MAKE_ROOT], timeout_s=_MARGIN_S)
        root = made.stdout.decode(errors="replace").strip()
        if made.exit_code != 0 or not root.startswith("/"):
            raise JudgeError(
                "no directory for the repository can be created in the image: "
                f"{made.stderr[-300:]!r}"
            )
        self._tree = repo_dir if repo_dir.startswith("/") else f"{root}/{repo_dir}"
        self._home = f"{root}/home"
        await self._lease.exec(["rm", "-rf", "--", f"{self._tree}/.git"], timeout_s=_MARGIN_S)
        try:
            await self._lease.put(clone, self._tree)
        except TransferError as error:
            raise JudgeError(
                f"the state could not be copied into a fresh container: {error}"
            ) from error

    async def judge(self, trial: Trial, gone: Sequence[str]) -> Findings:
        """Install the state and run its tests, in one call, so that the judge starts before any
        code of the candidate.

        Args:
            trial: the installation and the tests.
            gone: paths to remove first, relative to the repository.

        Raises:
            JudgeError: the image has no Python, or the judge failed.
        """
        runs = trial.runs()
        env = {
            "HOME": self._home,
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._env,
        }
        asked = {
            "tree": self._tree,
            "home": self._home,
            "gone": list(gone),
            "env": env,
            **trial.question(runs),
        }
        secret = secrets.token_hex(24)
        limit = _PREPARE_S + trial.install_timeout_s + trial.total_s + trial.timeout_s + _MARGIN_S
        result = await self._lease.exec(
            ["python3", "-I", "-S", "-c", _source("judge.py")],
            input=json.dumps({**asked, "secret": secret}).encode(),
            timeout_s=limit,
            workdir="/",
            output_limit_bytes=_ANSWER_BYTES,
        )
        answer = read_answer(result.stdout, secret) if result.exit_code == 0 else None
        if answer is None:
            why = (
                "it exceeded its deadline"
                if result.timed_out
                else result.stderr.decode(errors="replace")[-500:]
            )
            raise JudgeError(
                "judging failed in a fresh container (the image needs python3, 3.6 or newer): "
                f"{why}"
            )
        return read_findings(answer, runs)


def read_answer(output: bytes, secret: str) -> dict[str, Any] | None:
    """Return the judge's answer, or None; lines that do not start with the secret are not the
    judge's.

    Args:
        output: output of the judge.
        secret: the secret that only the judge got.
    """
    lines = output.decode(errors="replace").split("\n")
    return next(
        (json_object(line.removeprefix(secret)) for line in lines if line.startswith(secret)), None
    )


def read_findings(
    answer: Mapping[str, Any], runs: Sequence[tuple[tuple[str, ...], Control | None]]
) -> Findings:
    """Return the findings of a judge's answer; exit codes, reports and controls must agree.

    Args:
        answer: the answer of ``inside/judge.py``.
        runs: the ids of each process, with its control if it is one.
    """
    protections = dict(answer["protections"])
    if answer["installed"] is not None:
        installed = Ended(**answer["installed"])
        if installed.exit_code != 0 or installed.timed_out:
            output = installed.output
            timed_out = installed.timed_out
            return Findings(ran=False, output=output, timed_out=timed_out, protections=protections)
    begun, *ends = [Ended(**one) for one in answer["runs"]]
    first = _records(begun)
    if not any(record.get("kind") == "runner" for record in first):
        missing = next(
            (str(record.get("text")) for record in first if record.get("kind") == "missing"), ""
        )
        return Findings(ran=False, output=missing or begun.output, protections=protections)
    never = Ended(exit_code=-1, timed_out=False, output="")
    found = list(zip(runs, [*ends, *[never] * (len(runs) - len(ends))], strict=True))
    tested = [(ids, ended) for (ids, control), ended in found if control is None]
    passed = frozenset(name for ids, ended in tested for name in passed_tests(ended, ids))
    # If the test itself did not pass, its control says nothing: a negated assertion that fails
    # passes, a skip skips.
    controls = [
        (one.id, ended) for (_, one), ended in found if one is not None and one.id in passed
    ]
    unfailed = tuple(name for name, ended in controls if not control_failed(ended, name))
    return Findings(
        ran=True,
        passed=frozenset() if unfailed else passed,
        problems={
            name: _problem(name, ended)
            for ids, ended in tested
            for name in ids
            if name not in passed
        },
        unfailed=unfailed,
        output=next((ended.output for ids, ended in reversed(tested) if ended.exit_code != 0), ""),
        protections={
            **protections,
            "own_processes": all(len(ids) == 1 for ids, _ in runs),
            "controls": len(controls),
        },
    )


def passed_tests(ended: Ended, ids: Sequence[str]) -> frozenset[str]:
    """Return the tests that passed in a process; none if its exit code and its report do not agree.

    Args:
        ended: the result of the process.
        ids: ids of the tests that it ran.
    """
    if ended.timed_out or ended.exit_code != int(any(map(_is_failure, _records(ended)))):
        return frozenset()
    return frozenset(name for name in ids if _passed(_phases(ended, name)))


def control_failed(ended: Ended, name: str) -> bool:
    """Return whether a control failed and said so; it may fail in any phase, also when its file is
    read.

    Args:
        ended: the result of the control's process.
        name: id of the control.
    """
    return (
        ended.exit_code == 1
        and not _passed(_phases(ended, name))
        and any(map(_is_failure, _records(ended)))
    )


def _records(ended: Ended) -> list[dict[str, Any]]:
    return [
        record for line in ended.report.split("\n") if (record := json_object(line)) is not None
    ]


def _phases(ended: Ended, name: str) -> list[dict[str, Any]]:
    return [
        record
        for record in _records(ended)
        if record.get("kind") == "test" and record.get("id") == name
    ]


def _is_failure(record: Mapping[str, Any]) -> bool:
    return record.get("outcome") == "failed" or record.get("kind") == "collect"


def _passed(phases: Sequence[Mapping[str, Any]]) -> bool:
    plain = all(phase.get("outcome") == "passed" and not phase.get("xfail") for phase in phases)
    return plain and any(phase.get("when") == "call" for phase in phases)


def _problem(name: str, ended: Ended) -> str:
    normal = ended.exit_code in (int(any(map(_is_failure, _records(ended)))), *_NOTHING_RAN)
    return next(
        _problems(name, ended),
        UNKNOWN_TEST if normal else f"not reported; exit code {ended.exit_code}",
    )


def _problems(name: str, ended: Ended) -> Iterator[str]:
    for phase in _phases(ended, name):
        if phase.get("outcome") != "passed" or phase.get("xfail"):
            yield f"{phase.get('when')} {phase.get('outcome')}: {str(phase.get('text'))[-500:]}"
    if ended.timed_out:
        yield "the tests exceeded their deadline"
    for record in _records(ended):
        if record.get("kind") == "collect":
            yield f"not reported: {str(record.get('text'))[-500:]}"
    if _passed(_phases(ended, name)):
        yield f"reported as passed, but the exit code is {ended.exit_code}"


def _source(name: str) -> str:
    return resources.files("hyperenvironment_swe").joinpath("inside", name).read_text("utf-8")


def nothing(detail: str, state: State | None = None) -> Verdict:
    """Return the verdict on an agent that left nothing to judge."""
    return Verdict(
        reward=0.0, phase="agent", detail=detail, facts={} if state is None else _facts(state)
    )


def not_installed(state: State, failure: Findings) -> Verdict:
    """Return the verdict on a state that does not install, although its base does."""
    facts = {**_facts(state), "output": failure.output[-_TAIL:]}
    return Verdict(
        reward=0.0,
        parts={"install": 0.0},
        phase="install",
        detail="it does not install",
        facts=facts,
    )


def base_faults(problems: Mapping[str, str], keep: Collection[str]) -> list[str]:
    """Return the tests that no agent can pass, by their results on the base.

    Args:
        problems: why tests did not pass on the base, or "", by id.
        keep: the tests that must pass on the base; other tests must be known to the test runner.
    """
    return [
        test
        for test, why in problems.items()
        if why == UNKNOWN_TEST or (test in keep and why and not why.startswith(_NO_RESULT))
    ]


def verdict(
    item: SweItem,
    state: State,
    tested: Findings,
    tests: Mapping[str, Sequence[str]],
    *,
    skipped: Collection[str],
    shaped: bool,
) -> Verdict:
    """Return the verdict on a state whose tests ran.

    Args:
        item: the problem.
        state: the state.
        tested: the results.
        tests: the tests that each wanted id means.
        skipped: tests without a result on the base either; they do not count.
        shaped: whether a part of the tests gives a part of the reward.
    """
    failed = {}
    for name, means in tests.items():
        if missing := [test for test in means if test not in tested.passed and test not in skipped]:
            failed[name] = tested.problems.get(missing[0], "")
    passed = tests.keys() - failed.keys()
    parts = {"install": 1.0, "pass_to_pass": _part(item.pass_to_pass, passed)}
    if set(item.fail_to_pass) <= tests.keys():
        parts["fail_to_pass"] = _part(item.fail_to_pass, passed)
    protections = dict(tested.protections)
    facts = {
        **_facts(state),
        "separate_user": protections["separate_user"],
        "protections": protections,
    }
    facts |= {
        "forged": bool(tested.unfailed),
        "unfailed_controls": list(tested.unfailed),
        "tests": len(tests),
    }
    facts |= {
        "failed": dict(list(failed.items())[:_LISTED]),
        "output": tested.output[-_TAIL:] if failed else "",
    }
    if skipped:
        facts["skipped_on_base"] = sorted(skipped)[:_LISTED]
    detail = f"{len(failed)} of {len(tests)} tests did not pass" if failed else "every test passed"
    if tested.unfailed:
        detail = "tests that must fail did not, so no test counts"
    reward = 1.0 if not failed else 0.5 * len(passed) / len(tests) if shaped else 0.0
    return Verdict(reward=reward, parts=parts, phase="tests", detail=detail, facts=facts)


def _facts(state: State) -> dict[str, Any]:
    facts = {
        "dropped": [list(one) for one in state.dropped[:_LISTED]],
        "patch_bytes": state.patch_bytes,
    }
    return {**facts, "submodules": list(state.submodules[:_LISTED])} if state.submodules else facts


def _part(ids: Sequence[str], passed: Collection[str]) -> float:
    return sum(name in passed for name in ids) / len(ids) if ids else 1.0
