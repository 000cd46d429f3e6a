"""What is said when a process runs out of memory."""

from __future__ import annotations

import resource

import pytest

from hyperruntime.concurrency.exhaustion import exhausted


def test_an_error_that_the_interpreter_had_no_memory_to_name_is_told_from_its_own_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # CPython 3.11 in place of a MemoryError, now and then
    lost = SystemError("error return without exception set")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**24, 2**24))
    call = SystemError("<built-in function exec> returned NULL without setting an exception")
    # of text that dataclasses generated
    parser = SyntaxError("expected ':'", ("<string>", 2, 1, "", 2, 1))
    for error in (lost, call, parser):
        assert "cannot get memory; raise `ulimit -v`" in exhausted(error)
    assert exhausted(SystemError("unknown opcode")) == ""
    assert exhausted(SyntaxError("invalid syntax", ("plugin.py", 2, 1, "def f(", 2, 1))) == ""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert [exhausted(one) for one in (lost, call, parser)] == ["", "", ""]
