"""The pools behind the fixtures: one for each engine and configuration that tests ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.images.recipes import BASE, recipe_of
from hyperruntime.pool.sync import SyncLease, SyncPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.pool_values.profiles import parse_profile, parse_texts
from hyperruntime.runtime import Runtime, open_runtime

Table = Mapping[str, Any]
Key = tuple[str | None, PoolConfig]
_MOST_UNUSED = 4
_DEFAULTS: Table = {
    "image": BASE,
    "slots_per_container": 1,  # so each test has a container of its own, and another one is ready
    "min_containers": 0,
    "max_lifetime_s": None,
}


class Pools:
    """Pools that start with the first test that needs them; ``with`` ends all at the end.

    Of the pools without a lease, only the last few stay: each has containers that are ready.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        """Make no pool yet.

        Args:
            lines: of the configuration file, each ``KEY = VALUE``.
        """
        self._lines = lines
        self._engines: dict[str | None, Runtime] = {}
        self._pools: dict[Key, SyncPool] = {}  # in order of last use
        self._leases = Counter[Key]()
        self._stack = ExitStack()

    def __enter__(self) -> Pools:
        """Return the pools."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all containers."""
        for pool in self._pools.values():
            self._stack.callback(pool.close)
        self._stack.close()

    @contextmanager
    def lease(self, *tables: Table) -> Iterator[SyncLease]:
        """Yield a fresh slot, which is reset or replaced afterwards.

        Args:
            tables: keys of the slot's profile, and ``runtime``, the engine; a later table overrides
                earlier ones.

        Raises:
            HyperRuntimeError: a key is invalid, or no slot can be had; the message says why.
        """
        keys = merged(_DEFAULTS, table_of(self._lines), *tables)
        key = keys.pop("runtime", None), parse_profile("pytest", keys)
        if key not in self._pools:
            self._pools[key] = self._started(*key)
        self._leases[key] += 1
        try:
            with self._pools[key].lease() as lease:
                yield lease
        finally:
            self._leases[key] -= 1
            self._pools[key] = self._pools.pop(key)
            self._close_unused()

    def _close_unused(self) -> None:
        unused = [key for key in self._pools if not self._leases[key]]
        for key in unused[:-_MOST_UNUSED]:
            self._pools.pop(key).close()

    def _started(self, runtime: str | None, config: PoolConfig) -> SyncPool:
        if runtime not in self._engines:
            self._engines[runtime] = self._stack.enter_context(open_runtime(runtime))
        engine = self._engines[runtime]
        started = config
        if recipe_of(config.spec.image) is not None:
            started = attrs.evolve(
                config,
                spec=attrs.evolve(config.spec, image=engine.images.ensure(config.spec.image)),
            )
        return SyncPool(engine, started)


def table_of(lines: Sequence[str]) -> dict[str, Any]:
    """Return the keys of lines ``KEY = VALUE``, whose values are written as in environment
    variables.

    Raises:
        SpecError: a line has another form, a key is unknown or a value is invalid.
    """
    pairs = [line.partition("=") for line in lines]
    if bad := [key for key, equals, _ in pairs if not equals]:
        raise SpecError(
            "hyperruntime", bad[0], "a line of the form KEY = VALUE in the configuration of pytest"
        )
    texts = {key.strip(): value.strip() for key, _, value in pairs}
    engine = {"runtime": texts.pop("runtime")} if "runtime" in texts else {}
    return {**engine, **parse_texts(texts)}


def merged(*tables: Table) -> dict[str, Any]:
    """Return one table; of the same key the last value counts, and tables in them are merged
    too.
    """
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            before = result.get(key)
            if isinstance(before, Mapping) and isinstance(value, Mapping):
                result[key] = merged(before, value)
            else:
                result[key] = value
    return result
