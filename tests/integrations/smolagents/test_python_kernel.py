"""What a Python process in a container says is limited and not trusted."""

from __future__ import annotations

import json
import tracemalloc

import pytest

import hyperruntime as hr
from hyperruntime_smolagents.python_kernel import PythonKernel, _parse


@pytest.fixture
def kernel(container: hr.Container) -> PythonKernel:
    return PythonKernel(container)  # ends with its container


@pytest.mark.engine
def test_the_size_of_values_is_limited(kernel: PythonKernel) -> None:
    failed = kernel.run("raise ValueError('first' + 'x' * 5_000_000 + 'last')", 60)
    assert len(failed.value) == 5_000_009
    assert len(failed.error) < 100_000
    assert failed.error.endswith("xlast\n")
    assert "more than 8388608 bytes of JSON" in kernel.run("'x' * 9_000_000", 60).error
    assert not kernel.is_alive


def test_a_reply_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    reply = b'{"output": [' + b"[]," * 1_000_000 + b"0]}\n"
    tracemalloc.start()
    assert _parse(reply) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * 1024**2


def test_replies_of_any_text_are_read() -> None:
    for text in ("", ",:[{" * 100_000, '","' * 100_000, "\\" * 9, "\n\u20ac", '\\"' * 9):
        reply = {"error": text, "kind": "E", "value": text}
        assert _parse(json.dumps(reply).encode() + b"\n") == reply
