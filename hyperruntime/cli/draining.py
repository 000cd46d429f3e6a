"""SIGUSR1, which a batch system sends before it ends a job: a run then takes no new work, and what
it has begun may be finished in the time that is left.

Design: docs/design/runs.md#signals-of-a-batch-system.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hyperruntime.cli.messages import note
from hyperruntime.cli.signals import GRACE_S, Interruption, handled
from hyperruntime.host.batch_job import BatchJob, in_step
from hyperruntime.runs.drain import Drain
from hyperruntime.units import format_duration


@contextmanager
def drained_by_signals(state: Interruption, *, here: bool) -> Iterator[Drain]:
    """Yield a drain that SIGUSR1 begins inside the ``with`` block; other signals interrupt the run
    as everywhere, also during the drain.

    Args:
        state: its watch reports the signals; without a watch, nothing begins the drain.
        here: whether the run's containers are on this machine. In a step of ``srun`` SIGUSR1
            interrupts such a run: Slurm sends it to the processes in containers too.
    """
    drain = Drain()
    if state.watch is None or (here and in_step()):
        yield drain
        return
    over = threading.Event()

    def takes(number: int) -> bool:
        if number != signal.SIGUSR1 or state.ending:
            return False
        if not drain.begun:
            drain.begun = True
            state.first_signal = number
            threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
        return True

    with handled([signal.SIGUSR1], lambda number, frame: None), state.watch.holding(takes):
        try:
            yield drain
        finally:
            over.set()


def _wait_for_the_end(over: threading.Event) -> None:
    """Interrupt the run shortly before Slurm ends its job, unless it is over."""
    job = BatchJob.current()
    left_s = None if job is None else job.seconds_left()
    words = "SIGUSR1: no new work is taken; what has begun may be finished"
    if left_s is None:
        note(words)
        return
    left_s = max(0.0, left_s - GRACE_S)
    note(f"{words}, for {format_duration(left_s)} at most")
    if not over.wait(left_s):
        main = threading.main_thread().ident
        assert main is not None, "it runs"
        signal.pthread_kill(main, signal.SIGTERM)
