"""The plug-in, which pytest imports in every run: it imports nothing of hyperruntime before a
fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hyperruntime.pool.sync import SyncLease
    from hyperruntime_pytest.pools import Pools

NAME = "hyperruntime"
_INI = (
    "containers of hyperruntime: lines KEY = VALUE, with the keys of a profile of a pool, and "
    "`runtime`"
)
_MARK = (
    f"{NAME}(**keys): containers of this test, by the keys of a profile of a pool (image, "
    "network, limits, ...)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the configuration file."""
    parser.addini(NAME, _INI, type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark."""
    config.addinivalue_line("markers", _MARK)


@pytest.fixture(scope="session")
def _hyperruntime_pools(pytestconfig: pytest.Config) -> Iterator[Pools]:
    """Yield the pools of this process; all containers end with the session, and at the latest with
    the process.
    """
    from hyperruntime_pytest.pools import Pools

    with Pools(pytestconfig.getini(NAME)) as pools:
        yield pools


@pytest.fixture
def hyperruntime_containers(
    request: pytest.FixtureRequest, _hyperruntime_pools: Pools
) -> Iterator[Callable[..., SyncLease]]:
    """Yield a function that returns a fresh container, each time another one; its arguments are
    keys of the mark.
    """
    from hyperruntime.errors import HyperRuntimeError

    marks = [*request.node.iter_markers(NAME)][::-1]  # the closest one comes last
    if any(mark.args for mark in marks):
        pytest.fail(
            f"no container: the mark {NAME} takes keys only, such as image='base'", pytrace=False
        )

    def start(**keys: Any) -> SyncLease:  # noqa: ANN401 - keys of a profile
        try:
            return stack.enter_context(
                _hyperruntime_pools.lease(*(mark.kwargs for mark in marks), keys)
            )
        except HyperRuntimeError as error:
            why = str(error)
        return pytest.fail(f"no container: {why}", pytrace=False)

    with ExitStack() as stack:
        yield start


@pytest.fixture
def hyperruntime_container(hyperruntime_containers: Callable[..., SyncLease]) -> SyncLease:
    """Return a fresh container: ``exec``, ``read_file``, ``write_file``, ``put``, ``get``,
    ``spawn``, ``forward``.
    """
    return hyperruntime_containers()
