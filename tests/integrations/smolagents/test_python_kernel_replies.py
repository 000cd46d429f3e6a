"""What a hostile container may answer in place of a Python process."""

from __future__ import annotations

import json
import tracemalloc

from hyperruntime_smolagents.python_kernel import _parse


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
