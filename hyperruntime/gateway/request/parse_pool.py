"""A few processes that parse for the gateway, started on first use and shared fairly."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any, ParamSpec, TypeVar

from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.gateway.request.parse_worker import Answer, Job
from hyperruntime.host.process import DEVNULL, HostProcess, python_args, reap, spawn
from hyperruntime.logs import get_logger

log = get_logger(__name__)

WORKERS = 2
_JOB_S = 10.0
_QUICK_COST = 6000  # about a millisecond
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from hyperruntime.gateway.request.parse_worker "
    "import main; main()"
)
Asked = ParamSpec("Asked")
Result = TypeVar("Result")


class ParsePool:
    """Runs functions in worker processes; used in the gateway's event loop, closed from any thread.

    Attributes:
        served: the highest rank of a call that has had its turn.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        """Create a pool of `workers` processes; none is started yet."""
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="hyperruntime-gateway-parse")
        self._workers = [_Worker() for _ in range(workers)]
        self._idle = list(self._workers)
        self._waiting: list[tuple[int, int, asyncio.Future[_Worker]]] = []
        self.served = 0
        self._numbers = itertools.count()

    async def run(
        self,
        rank: int,
        function: Callable[Asked, Result],
        *args: Asked.args,
        **options: Asked.kwargs,
    ) -> Result:
        """Call a function in a worker, and return its result.

        Args:
            rank: of the waiting calls, the smallest rank runs first.
            function: a function of a module, with arguments that can be pickled.
            args: its arguments.
            options: its keyword arguments.

        Raises:
            RequestRefusedError: the function raised it, or the worker was lost.
        """
        worker = await self._take(rank)
        self.served = max(self.served, rank)
        job = asyncio.get_running_loop().run_in_executor(
            self._threads, worker.call, (function, args, options)
        )
        job.add_done_callback(lambda _: self._give_back(worker))
        result, refusal = await asyncio.shield(job)  # a cancelled caller does not stop the worker
        if refusal is not None:
            raise refusal
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End all workers. Idempotent."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    async def _take(self, rank: int) -> _Worker:
        if self._idle:
            return self._idle.pop()
        turn: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            raise

    def _give_back(self, worker: _Worker) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(worker)
                return
        self._idle.append(worker)


class PoolShare:
    """One seat's share of the pool: one call at a time. Calls of about a millisecond run in the
    event loop itself.

    Of the waiting seats, the one that has used the pool least runs next. A seat cannot save up
    turns while it is idle. Source: Goyal, Vin, Cheng, "Start-time Fair Queuing", 1996: ranks are
    start tags.
    """

    def __init__(self, pool: ParsePool) -> None:
        """Start with no use of the pool."""
        self._pool = pool
        self._one = asyncio.Semaphore(1)
        self._used = 0

    async def run(
        self,
        cost: int,
        function: Callable[Asked, Result],
        *args: Asked.args,
        **options: Asked.kwargs,
    ) -> Result:
        """Call a function, and return its result.

        Args:
            cost: the time that it takes, in JSON values to parse.
            function: a function of a module, with arguments that can be pickled.
            args: its arguments.
            options: its keyword arguments.

        Raises:
            RequestRefusedError: the function raised it, or the worker was lost.
        """
        if cost <= _QUICK_COST:
            return function(*args, **options)
        await self._one.acquire()
        rank = max(self._used, self._pool.served)
        self._used = rank + cost
        job = asyncio.ensure_future(self._pool.run(rank, function, *args, **options))
        job.add_done_callback(self._over)
        # a client that leaves keeps its turn until the worker is done
        return await asyncio.shield(job)

    def _over(self, job: asyncio.Future[Any]) -> None:
        self._one.release()
        if not job.cancelled():
            job.exception()  # marks it as retrieved: the caller may be cancelled


class _Worker:
    """A process that is started at the first call, and again after it was lost; runs one call at a
    time.
    """

    def __init__(self) -> None:
        self._link: tuple[HostProcess, Connection[Job, Answer]] | None = None

    def call(self, job: Job) -> Answer:
        """Return the result of a job, or its error; a process that ends or does not answer in time
        is lost.
        """
        try:
            return self._ask(job)
        except (OSError, EOFError):
            log.warning("gateway parse worker lost")
            self.close()
            return None, RequestRefusedError(
                503, "worker_lost", "the gateway's parser failed or timed out; retry"
            )

    def _ask(self, job: Job) -> Answer:
        self._link = self._link or _start_process()
        process, pipe = self._link
        timer = threading.Timer(_JOB_S, process.kill)
        timer.start()
        try:
            pipe.send(job)
            return pipe.recv()
        finally:
            timer.cancel()

    def kill(self) -> None:
        """Kill the process, if there is one; a call that waits for it fails."""
        link = self._link  # a call that fails may set it to None meanwhile
        if link is not None:
            link[0].kill()

    def close(self) -> None:
        """End the process, if there is one; no call may run."""
        self.kill()
        if self._link is not None:
            process, pipe = self._link
            reap(process, 5)
            pipe.close()
            self._link = None


def _start_process() -> tuple[HostProcess, Connection[Job, Answer]]:
    pipe, other_end = Pipe()
    with other_end:
        args = python_args("-I", "-c", _PROGRAM, *sys.path)
        return spawn(args, stdin=other_end.fileno(), stdout=DEVNULL, stderr=DEVNULL, cwd="/"), pipe
