"""The examples in the docstrings of public classes."""

from __future__ import annotations

import asyncio
import doctest
import inspect
from collections.abc import Iterator

import pytest

import hyperruntime as hr
from hyperruntime import sandbox
from hyperruntime.runtime import Runtime
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.driver import IMAGE

_PUBLIC = {name: getattr(hr, name) for name in hr.__all__}
# what a sandbox starts, by type
_PUBLIC |= {
    f"sandbox.{one.__name__}": one for one in (sandbox.Process, sandbox.Terminal, sandbox.Shell)
}
CLASSES = sorted(name for name, one in _PUBLIC.items() if inspect.isclass(one))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(FakeDriver()) as opened:
        yield opened


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_public_class_runs(name: str, runtime: Runtime) -> None:
    """They may use what a reader has: ``hr``, an open ``runtime``, a ``spec``."""
    given = {
        "hr": hr,
        "asyncio": asyncio,
        "runtime": runtime,
        "spec": hr.ContainerSpec(image=IMAGE, limits=hr.Limits(pids=None)),  # it refuses the limit
    }
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(_PUBLIC[name]) or "", given, name, None, None
    )
    assert example.examples
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
