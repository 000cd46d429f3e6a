"""Run a state's installation and tests in a fresh container, and read the result of each test.

Code of the state (the candidate) runs as one user; a process of another user returns its reports. For what the
candidate could still forge, see docs/decisions/0026-environments.md.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs

from hyperruntime.errors import HyperRuntimeError, TransferError
from hyperruntime.json_values import json_object
from hyperruntime.pool.lease import Lease

_MARGIN_S = 60.0
_CONTROLS = 4
_ANSWER_BYTES = 128 * 1024 * 1024
_ROOT = "/hyperruntime-judge"
_MAKE_ROOT = f"mkdir -m 755 {_ROOT} 2>/dev/null && echo {_ROOT} || {{ chmod 755 . && pwd; }}"
_PYTHON = 'if [ -x .venv/bin/python ]; then exec .venv/bin/python "$@"; fi; exec python3 "$@"'


class JudgeError(HyperRuntimeError):
    """A state could not be judged, and the agent did not cause this."""


@attrs.frozen(kw_only=True)
class Ended:
    """The result of a command of the candidate.

    Attributes:
        exit_code: exit code; negative if a signal killed the command.
        timed_out: whether it was killed at its deadline.
        output: tail of its output.
        report: content of the report pipe.
    """

    exit_code: int
    timed_out: bool
    output: str
    report: str


@attrs.frozen(kw_only=True)
class Findings:
    """The results of tests.

    Attributes:
        ran: whether the test runner started.
        passed: ids of the tests that passed.
        problems: why the other tests did not pass, by id.
        forged: whether control tests, which must fail, did not fail; then no test counts.
        output: tail of the output of the last process, or why the test runner is missing.
        timed_out: whether the installation was killed at its deadline; then no test ran.
        separate: whether the tests ran as a different user than the judge.
    """

    ran: bool
    passed: frozenset[str] = frozenset()
    problems: Mapping[str, str] = attrs.field(factory=dict)
    forged: bool = False
    output: str = ""
    timed_out: bool = False
    separate: bool = False


class Court:
    """A fresh container with a state in it."""

    def __init__(self, lease: Lease, env: Mapping[str, str]) -> None:
        """Set the container and the candidate's environment.

        Args:
            lease: the container.
            env: environment variables of the candidate's commands.
        """
        self._separate = False
        self._lease, self._env = lease, env
        self._tree = self._home = ""

    async def receive(self, clone: str, repo_dir: str, gone: Sequence[str]) -> None:
        """Copy a state into the container, over the files of the image, and give it to the candidate's user.

        Args:
            clone: directory of the state on the host.
            repo_dir: target: absolute, or relative to the judge's directory.
            gone: paths to remove, relative to ``repo_dir``.

        Raises:
            JudgeError: the image has no Python, or the files cannot be written.
        """
        made = await self._lease.exec(["/bin/sh", "-c", _MAKE_ROOT], timeout_s=_MARGIN_S)
        root = made.stdout.decode(errors="replace").strip()
        if made.exit_code != 0 or not root.startswith("/"):
            raise JudgeError(f"no directory for the repository can be created in the image: {made.stderr[-300:]!r}")
        self._tree = repo_dir if repo_dir.startswith("/") else f"{root}/{repo_dir}"
        self._home = f"{root}/home"
        await self._lease.exec(["rm", "-rf", "--", f"{self._tree}/.git"], timeout_s=_MARGIN_S)
        try:
            await self._lease.put(clone, self._tree)
        except TransferError as error:
            raise JudgeError(f"the state could not be copied into a fresh container: {error}") from error
        answer = await self._ask({"do": "prepare", "home": self._home, "gone": list(gone)}, 600.0)
        self._separate = bool(answer["separate"])

    async def run(self, args: Sequence[str], *, timeout_s: float, stdin: str = "") -> Ended:
        """Run a command of the candidate.

        Args:
            args: the command; the argument ``{fd}`` is replaced by the file descriptor of the report pipe.
            timeout_s: deadline of the command.
            stdin: text for its standard input.

        Raises:
            JudgeError: the judge failed.
        """
        env = {"HOME": self._home, "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", **self._env}
        asked = {"do": "run", "args": list(args), "env": env, "input": stdin, "timeout_s": timeout_s}
        return Ended(**await self._ask(asked, timeout_s + _MARGIN_S))

    async def test(
        self, ids: Sequence[str], asked: Mapping[str, Any], *, python: str | None, chunk: int, timeout_s: float
    ) -> Findings:
        """Run tests in chunks, one process each; without tests, check that the test runner starts.

        Args:
            ids: ids of the tests.
            asked: ``runner``, ``settings`` and ``own_plugins`` for ``inside/launch.py``.
            python: the Python that runs them; None means that of ``.venv``, or else ``python3``.
            chunk: maximum number of tests in one process.
            timeout_s: timeout of one process.
        """
        program = [python] if python else ["/bin/sh", "-c", _PYTHON, "python"]
        args = [*program, "-c", _source("launch.py"), "{fd}"]
        passed: set[str] = set()
        problems: dict[str, str] = {}
        tested = Findings(ran=True)
        for at in range(0, max(1, len(ids)), chunk):
            some = list(ids[at : at + chunk])
            secret = secrets.token_hex(24)
            controls = [f"test_{secrets.token_hex(8)}" for _ in range(_CONTROLS)]
            question = json.dumps({**asked, "ids": some, "secret": secret, "controls": controls})
            ended = await self.run(args, timeout_s=timeout_s, stdin=question)
            tested = read_report(ended, secret, some, controls)
            if not tested.ran or tested.forged:
                break
            passed |= tested.passed
            problems |= tested.problems
        kept = frozenset() if tested.forged else frozenset(passed)
        return attrs.evolve(tested, passed=kept, problems=problems | dict(tested.problems), separate=self._separate)

    async def _ask(self, asked: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        question = json.dumps({**asked, "tree": self._tree}).encode()
        args = ["python3", "-I", "-c", _source("judge.py")]
        result = await self._lease.exec(
            args, input=question, timeout_s=timeout_s, workdir="/", output_limit_bytes=_ANSWER_BYTES
        )
        answer = json_object(result.stdout) if result.exit_code == 0 else None
        if answer is None:
            why = "it exceeded its deadline" if result.timed_out else result.stderr.decode(errors="replace")[-500:]
            raise JudgeError(f"judging failed in a fresh container (the image needs python3, 3.6 or newer): {why}")
        return answer


def read_report(ended: Ended, secret: str, ids: Sequence[str], controls: Sequence[str]) -> Findings:
    """Return the findings of a chunk's report; lines that do not start with the secret are ignored.

    Args:
        ended: the result of the process that ran the chunk.
        secret: the secret of the chunk.
        ids: ids of the wanted tests.
        controls: ids of the control tests, which must fail.
    """
    lines = [line.removeprefix(secret) for line in ended.report.split("\n") if line.startswith(secret)]
    records = [record for line in lines if (record := json_object(line)) is not None]
    missing = next((str(record.get("text")) for record in records if record.get("kind") == "missing"), "")
    if not any(record.get("kind") == "runner" for record in records):
        return Findings(ran=False, output=missing or ended.output)
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == "test":
            phases.setdefault(str(record.get("id")), []).append(record)
    passed = frozenset(name for name in ids if _passed(phases.get(name, ())))
    failed_as_they_must = all(_failed(phases.get(name, ())) for name in controls)
    problems = {name: _problem(phases.get(name, ()), records, ended) for name in ids if name not in passed}
    forged = bool(passed) and not failed_as_they_must
    return Findings(ran=True, passed=passed, problems=problems, forged=forged, output=ended.output)


def _outcomes(phases: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [phase.get("outcome") for phase in phases if phase.get("when") == "call"]


def _passed(phases: Sequence[Mapping[str, Any]]) -> bool:
    plain = all(phase.get("outcome") == "passed" and not phase.get("xfail") for phase in phases)
    return plain and "passed" in _outcomes(phases)


def _failed(phases: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a test failed, in any phase; autouse fixtures of the repository may fail in the setup."""
    return "passed" not in _outcomes(phases) and any(phase.get("outcome") == "failed" for phase in phases)


def _problem(phases: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], ended: Ended) -> str:
    for phase in phases:
        if phase.get("outcome") != "passed" or phase.get("xfail"):
            return f"{phase.get('when')} {phase.get('outcome')}: {str(phase.get('text'))[-500:]}"
    if ended.timed_out:
        return "the tests exceeded their deadline"
    uncollected = [str(record.get("text"))[-500:] for record in records if record.get("kind") == "collect"]
    return f"not reported: {uncollected[0]}" if uncollected else f"not reported; exit code {ended.exit_code}"


def _source(name: str) -> str:
    return resources.files("hyperenvironment_swe").joinpath("inside", name).read_text("utf-8")
