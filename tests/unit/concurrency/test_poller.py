"""One thread reads many descriptors, whatever one of their readers does."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest

from hyperruntime.concurrency.poller import Poller, poller
from hyperruntime.host.process import wait_until


def test_every_descriptor_is_read_in_one_thread_until_its_end() -> None:
    own, pipes = Poller(), [os.pipe() for _ in range(50)]
    said: dict[int, bytes] = {end: b"" for end, _ in pipes}
    ended: set[int] = set()
    names: set[str] = set()

    def read(end: int) -> None:
        names.add(threading.current_thread().name)
        chunk = os.read(end, 100)
        said[end] += chunk
        if not chunk:
            own.remove(end)
            os.close(end)
            ended.add(end)

    for end, _ in pipes:
        own.add(end, partial(read, end))
    for end, other in pipes:
        os.write(other, b"%d" % end)
        os.close(other)
    assert wait_until(lambda: len(ended) == 50, 120)
    assert said == {end: b"%d" % end for end in said}
    assert names == {"hyperruntime-poller"}


def test_a_reader_that_fails_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    own, (bad, to_bad), (good, to_good) = Poller(), os.pipe(), os.pipe()
    heard = threading.Event()

    def fail() -> None:
        own.remove(bad)
        raise RuntimeError("broken reader")

    def hear() -> None:
        own.remove(good)
        heard.set()

    own.add(bad, fail)
    own.add(good, hear)
    os.write(to_bad, b"x")
    os.write(to_good, b"x")
    assert heard.wait(120)
    for descriptor in (bad, to_bad, good, to_good):
        os.close(descriptor)


def test_a_forked_child_has_a_poller_of_its_own() -> None:
    parents = poller()
    assert poller() is parents
    child = os.fork()
    if child == 0:
        os._exit(0 if poller() is not parents else 1)
    assert os.waitpid(child, 0)[1] == 0
