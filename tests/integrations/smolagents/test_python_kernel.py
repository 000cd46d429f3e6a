"""A Python process that keeps its variables; what it says is not trusted."""

from __future__ import annotations

import pytest

import hyperruntime as hr
from hyperruntime_smolagents.python_kernel import PythonKernel

pytestmark = pytest.mark.engine


@pytest.fixture
def kernel(container: hr.Container) -> PythonKernel:
    return PythonKernel(container)  # ends with its container


def test_variables_stay_and_the_last_value_comes_back(kernel: PythonKernel) -> None:
    assert kernel.run("import sys\nx = [1]\nprint('é')\nx", 60).output == "[1]"
    done = kernel.run("x.append(2)\nprint('err', file=sys.stderr)\nx", 60)
    assert (done.output, done.logs, done.error) == ("[1, 2]", "err\n", "")
    failed = kernel.run("def f():\n    x.fail()\nf()", 60)
    assert (failed.kind, failed.value) == (
        "AttributeError",
        "'list' object has no attribute 'fail'",
    )
    assert "line 2, in f\n    x.fail()" in failed.error
    assert "python_loop" not in failed.error


def test_a_text_is_interrupted_and_variables_stay(kernel: PythonKernel) -> None:
    kernel.run("x = 1", 60)
    late = kernel.run("print('before', flush=True)\nwhile True: pass", 2)
    assert (late.error, late.logs.split()[0]) == (
        "the code was interrupted after 2 s; its variables stay",
        "before",
    )
    assert kernel.run("x", 60).output == "1"


def test_a_text_that_cannot_be_interrupted_is_killed(
    kernel: PythonKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime_smolagents.python_kernel._INTERRUPT_S", 0.5)
    late = kernel.run(
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", 1
    )
    assert "its variables are lost" in late.error
    assert not kernel.is_alive


def test_the_size_of_values_is_limited(kernel: PythonKernel) -> None:
    failed = kernel.run("raise ValueError('first' + 'x' * 5_000_000 + 'last')", 60)
    assert len(failed.value) == 5_000_009
    assert len(failed.error) < 100_000
    assert failed.error.endswith("xlast\n")
    assert "more than 8388608 bytes of JSON" in kernel.run("'x' * 9_000_000", 60).error
    assert not kernel.is_alive


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        (
            "import os\nfor n in range(3, 20):\n    try: os.write(n, b'[' * 9999 + b'\\n')\n   "
            " except OSError: pass",
            "lost",
        ),
        (
            "import os\nfor n in range(3, 20):\n    try: os.write(n, b'{}\\n')\n    except "
            "OSError: pass",
            "lost",
        ),
    ],
)
def test_a_process_that_ends_or_lies_is_an_error(
    kernel: PythonKernel, code: str, word: str
) -> None:
    assert word in kernel.run(code, 60).error
    assert not kernel.is_alive
    assert "lost" in kernel.run("1", 60).error
