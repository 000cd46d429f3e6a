"""The jobs of a cluster's nodes: each runs one node server, and its end is noticed.

A job and its head share a directory, which is new for each head. For the node ``node-1``, it has:

- ``node-1.json``: what the node server needs, which it reads and removes. Only this user can read
  it: it has the node's token.
- ``node-1.host``: where the job has begun.
- ``node-1.err``: what the set-up lines and the node server wrote to standard error.
- ``node-1.end``: how it ended: an exit code, and a word. Without it, somebody else ended the job.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import attrs

from hyperruntime import registry
from hyperruntime.cluster import node_job
from hyperruntime.cluster.config import JOB_BEGAN, ClusterConfig
from hyperruntime.cluster.head import Invitation
from hyperruntime.cluster.launchers.launcher import JobState, Launcher
from hyperruntime.cluster.launchers.parsl import parsl_launcher
from hyperruntime.cluster.node_services import NodeSettings
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import ClusterError
from hyperruntime.host import python
from hyperruntime.host.python import PYTHONPATH, python_args
from hyperruntime.host.temporary import SCRATCH
from hyperruntime.logs import get_logger
from hyperruntime.secrets.env_file import KEY_VARIABLES
from hyperruntime.storage.atomic import storage_errors

log = get_logger(__name__)

_PLAIN_PATH = re.compile(r"[\w./+,:=@%-]+")  # launchers write paths into scripts as they are
_LOOK_S = 0.2  # between two looks at the directory
# after a node was lost: between two questions for states, and for how long
_SOON_S = 2.0
_SOON_FOR_S = 120.0
_FILES_S = 3.0  # for the files of a job that is over to be seen here, if it says nothing itself
_TAIL_BYTES = 2000
_ALL = "nodes"  # the files of nodes that somebody starts
# A line of the set-up that fails ends the job: `trap ... ERR` leaves out what a condition asks for.
_SCRIPT = """\
{began}
hyperruntime_host=${{SLURMD_NODENAME:-$(uname -n)}}
hyperruntime_files={directory}/{name}
for _ in $(seq 100); do [ -d {directory} ] && break; sleep 0.1; done
[ -d {directory} ] || {{
    echo {directory}" is not seen here: its head has ended, or nodes do not share it; put it where all see it" >&2
    exit 1
}}
exec 2>>"$hyperruntime_files.err"
echo "$hyperruntime_host" >"$hyperruntime_files.host"
hyperruntime_end() {{
    [ "$1" = 0 ] || echo "{{\\"code\\": $1, \\"how\\": \\"$2\\"}}" >"$hyperruntime_files.end"
    trap - EXIT
    exit "$1"
}}
case " {excluded} " in *" $hyperruntime_host "*) hyperruntime_end 75 excluded ;; esac
{needs}
trap 'hyperruntime_end $? failed' ERR EXIT
{setup}
trap - ERR
unset {withheld}
{scratch}
export PATH={programs}:$PATH
{python_path}
[ -x {python} ] || {{
    echo {python}" is not on this node; install hyperruntime at the same path, or name another in \\`python\\`" >&2
    hyperruntime_end 127 failed
}}
exec {program} "$hyperruntime_files.json"
"""
_SET_SCRATCH = f"""\
export {SCRATCH}="{{}}"
[ -d "${SCRATCH}" ] && [ -w "${SCRATCH}" ] || {{{{
    echo "scratch: '${SCRATCH}' is no directory that can be written; name a local one that each job has" >&2
    hyperruntime_end 1 failed
}}}}"""


@attrs.frozen(kw_only=True)
class JobEnd:
    """How the job of a node ended.

    Attributes:
        kind: ``done``; ``failed``; ``cancelled`` by the batch system or somebody, or before it
            began; or ``excluded``: on a host that it should not be on.
        host: where it was; "" if it never began.
        why: in words.
    """

    kind: Literal["done", "failed", "cancelled", "excluded"]
    host: str = ""
    why: str = ""


class NodeJob:
    """The job of one node.

    Attributes:
        name: of the node.
        number: in the batch system.
        ended: has its end.
    """

    def __init__(self, name: str, number: str) -> None:
        """Note a job that was started; must be called on an event loop."""
        self.name = name
        self.number = number
        self.ended: asyncio.Future[JobEnd] = asyncio.get_running_loop().create_future()
        self.state = JobState(phase="queued")
        self.over_since: float | None = None


class NodeJobs:
    """The jobs of one cluster, from :meth:`start` to :meth:`stop`. All methods run on one event
    loop.

    Attributes:
        walltime_s: the longest time of a job in seconds; None if it is not known.
    """

    def __init__(self, config: ClusterConfig, files: Path, logs: Path) -> None:
        """Start nothing.

        Args:
            config: which nodes.
            files: a directory of these jobs alone, absolute; nodes must see it.
            logs: for the logs of nodes.
        """
        self._config = config
        self._files = files
        self._logs = logs
        self._launcher: Launcher | None = None
        # a launcher is used by one thread at a time
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs of nodes")
        self._jobs: list[NodeJob] = []
        self._alive: set[str] = set()  # numbers, for the thread
        self._soon_until = 0.0
        self._asked = 0.0
        self._tasks = BackgroundTasks("the jobs of nodes")
        self.walltime_s: float | None = None

    async def start(self) -> None:
        """Find the batch system; it is asked for nodes by :meth:`submit`.

        Raises:
            ClusterError: the launcher cannot be made, or the directory's path cannot be in a job
                script, or the walltime leaves no time for work.
        """
        if not _PLAIN_PATH.fullmatch(str(self._files)):
            step = "put the run in a path without spaces, quotes or other special characters"
            raise ClusterError(
                f"{str(self._files.parent)!r} cannot be named in the scripts of jobs; {step} of the shell"
            )
        if self._config.is_by_hand:
            return
        name = self._config.provider
        make = parsl_launcher if self._config.parsl else registry.load_launcher(name)
        self._launcher = await self._call(make, self._config, self._files)
        self.walltime_s = self._launcher.walltime_s
        if self.walltime_s is not None and self.walltime_s <= self._config.drain_s:
            step = f"a longer walltime, or a smaller drain_s, which is {self._config.drain_s:g}"
            raise ClusterError(
                f"the walltime in parsl={self._config.parsl!r}, {self.walltime_s:g} s, leaves no "
                f"time for work; name {step}"
            )
        self._tasks.start(self._watch())

    async def submit(self, invitation: Invitation, excluded: Collection[str] = ()) -> NodeJob:
        """Ask for a node, on which a node server accepts an invitation.

        Args:
            invitation: the node's.
            excluded: hosts that it should not be on.

        Raises:
            JobRefusedError: the batch system would refuse each such job.
            ClusterError: it has no room now, or does not answer.
            StorageError: the files of the job cannot be written.
        """
        assert self._launcher is not None, "started"
        config = self._config
        script = job_script(config, self._files, invitation.name, excluded)

        def start(launcher: Launcher) -> str:
            with storage_errors(self._files):
                self._write_needs(invitation, invitation.name)
            number = launcher.start(script, f"hyperrun.{invitation.name}", excluded=excluded)
            self._alive.add(number)  # also if nobody waits for it any more
            return number

        job = NodeJob(invitation.name, await self._call(start, self._launcher))
        self._jobs.append(job)
        return job

    def command(self, invitation: Invitation) -> str:
        """Return the command that starts a node server where somebody runs it; many may.

        Args:
            invitation: for all of them.
        """
        self._write_needs(invitation, _ALL)
        script = self._files / f"{_ALL}.sh"
        script.write_text(job_script(self._config, self._files, ""))
        return f"bash {script}"

    def _write_needs(self, invitation: Invitation, name: str) -> None:
        config = self._config
        settings = NodeSettings(config.runtime, str(self._logs))
        needs = {"invitation": attrs.asdict(invitation), "settings": attrs.asdict(settings)}
        path = self._files / f"{name}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            json.dump(needs, file)

    def look_soon(self) -> None:
        """Ask for states more often for a while: a node was lost."""
        self._soon_until = time.monotonic() + _SOON_FOR_S

    async def stop(self) -> None:
        """Cancel all jobs; may be called again."""
        self._tasks.cancel()
        self._jobs = []
        if (launcher := self._launcher) is not None:
            with suppress(Exception):  # the batch system does not answer; its nodes end alone
                await self._call(lambda: launcher.cancel(sorted(self._alive)))
        self._launcher = None
        self._thread.shutdown(wait=False)

    async def _call(self, function: Any, *args: Any) -> Any:  # noqa: ANN401
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _watch(self) -> None:
        """Notice jobs that end."""
        while True:
            await asyncio.sleep(_LOOK_S)
            alive = [job for job in self._jobs if not job.ended.done()]
            if not alive:
                continue
            try:
                found = await self._call(self._look, alive)
            except Exception as error:  # noqa: BLE001 - of a launcher; the next look may succeed
                log.warning("jobs not looked at", error=repr(error))
                await asyncio.sleep(_SOON_S)
                continue
            for job in alive:
                if job.name in found and not job.ended.done():
                    job.ended.set_result(found[job.name])
                    self._jobs.remove(job)

    def _look(self, jobs: Collection[NodeJob]) -> dict[str, JobEnd]:
        """Return how jobs have ended."""
        assert self._launcher is not None
        now = time.monotonic()
        usual = self._launcher.interval_s
        interval = min(usual, _SOON_S) if now < self._soon_until else usual
        if now - self._asked >= interval:
            self._asked = now
            known = {job.number: job for job in jobs}
            for number, state in self._launcher.states(known).items():
                job = known[number]
                job.state = state if state.phase != "unknown" else job.state
                if state.is_over and job.over_since is None:
                    job.over_since = now
                    self._alive.discard(number)
        names: set[str] = set()
        with suppress(OSError):  # on a network file system
            names = set(os.listdir(self._files))
        found = {}
        for job in jobs:
            # a job of this machine writes its files at once
            patience_s = min(_FILES_S, usual)
            is_late = job.over_since is not None and now - job.over_since > patience_s
            if f"{job.name}.end" in names or is_late:
                found[job.name] = self._end_of(job)
                self._alive.discard(job.number)
        return found

    def _end_of(self, job: NodeJob) -> JobEnd:
        files = self._files / job.name
        host = _read(files.with_suffix(".host"))
        words = _read(files.with_suffix(".err")) or job.state.words
        said = f", {words!r}" if words else ""
        try:
            end = json.loads(_read(files.with_suffix(".end")))
            how: Any = str(end["how"])
            code = int(end["code"])
        except (ValueError, KeyError, TypeError):
            code = job.state.exit_code or 0
            if not host or job.state.phase == "cancelled":
                return JobEnd(kind="cancelled", host=host, why=f"it was cancelled{said}")
            how = "failed"
            if not code:
                return JobEnd(kind="failed", host=host, why=f"it was killed{said}")
        if how not in ("done", "failed", "cancelled", "excluded"):
            how = "failed"
        why = f"exit code {code}{said}" if code else "done"
        return JobEnd(kind=how, host=host, why="it was told to end" if how == "cancelled" else why)


def job_script(
    config: ClusterConfig, directory: Path, name: str, excluded: Collection[str] = ()
) -> str:
    """Return the script of a node's job.

    Args:
        config: which nodes.
        directory: for the files of jobs.
        name: of the node; "" means that each process has a name of its own.
        excluded: hosts on which it ends at once.
    """
    place = shlex.quote(str(directory))
    ours, *words = python_args("-m", node_job.__name__)
    there = config.python or ours
    path = f"unset {PYTHONPATH}"
    if not config.python:
        program = shlex.join(python_args("-I", "-S", python.__file__))
        # the set-up lines may have changed it
        path = f'[ -z "${{{PYTHONPATH}:-}}" ] || export {PYTHONPATH}="$({program})"'
    return _SCRIPT.format(
        began=f"export {JOB_BEGAN}=$(date +%s)",
        directory=place,
        name=name or "$hyperruntime_host-$$",
        needs="" if name else f'(umask 077; cp {place}/{_ALL}.json "$hyperruntime_files.json")',
        excluded=" ".join(sorted(excluded)),
        setup="\n".join(config.setup) or ":",
        withheld=shlex.join((*KEY_VARIABLES, *config.withhold)),
        # the shell replaces variables
        scratch=_SET_SCRATCH.format(config.scratch) if config.scratch else ":",
        programs=shlex.quote(os.path.dirname(there)),
        python=shlex.quote(there),
        python_path=path,
        program=shlex.join([there, *words]),
    )


def _read(path: Path) -> str:
    """Return the end of a file in one line; "" if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return " ".join(file.read().decode(errors="replace").split())
    return ""
