"""What is said when a process runs out of memory."""

from __future__ import annotations

import resource

import pytest

from hyperruntime.concurrency.exhaustion import exhausted


def test_an_error_that_the_interpreter_had_no_memory_to_name_is_told_from_its_own_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = SystemError("error return without exception set")  # CPython 3.11 in place of a MemoryError, now and then
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**24, 2**24))
    assert "cannot get memory; raise `ulimit -v`" in exhausted(lost)
    assert exhausted(SystemError("unknown opcode")) == ""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert exhausted(lost) == ""
