"""``python -P -m hyperruntime.cluster.with_parent MODULE``: run a module in a process that ends
when its parent ends.

Parsl's interchange would outlive a head that is killed, and keep the nodes' jobs. Ctrl-C is for the
head alone.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

_LOOK_S = 1.0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
