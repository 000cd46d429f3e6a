"""The runtime that the users of a process share."""

from __future__ import annotations

import os
import threading

import pytest

from hyperruntime.adapters import shared_runtime
from hyperruntime.runtime import Runtime
from hyperruntime.testing import FakeDriver


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12
def test_a_child_that_is_forked_while_a_runtime_is_opened_opens_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def open_slowly(_: str | None) -> Runtime:
        if os.getpid() == parent:
            begun.set()
            go_on.wait(120)
        return Runtime(FakeDriver())

    monkeypatch.setattr(shared_runtime, "open_runtime", open_slowly)
    opening = threading.Thread(target=shared_runtime.shared_runtime, args=("slow",))
    opening.start()
    begun.wait(120)
    child = os.fork()
    if child == 0:
        opened = threading.Thread(target=shared_runtime.shared_runtime, args=("slow",), daemon=True)
        opened.start()
        opened.join(20)
        os._exit(int(opened.is_alive()))
    go_on.set()
    opening.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    shared_runtime._open.get().pop("slow").close()
