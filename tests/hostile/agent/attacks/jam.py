"""Fill the pipes of all processes, also those through which the host starts commands."""

import os

from attacks.evaluator import write_into


def task(scene, inputs):
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    for _ in range(100):
        write_into(pids, b"0 0\n1 0\nlane 1\nkill 1 0:0\n" * 150)
    return {"score": 1.0}
