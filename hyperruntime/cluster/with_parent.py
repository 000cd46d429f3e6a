"""``python -m hyperruntime.cluster.with_parent MODULE``: run a module in a process that ends when its parent ends.

Parsl's interchange would outlive a head that is killed, and keep the nodes' jobs.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time

_LOOK_S = 1.0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
