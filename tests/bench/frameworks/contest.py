"""A contest: the same calls of a framework on its own Docker sandbox and on ours, in turn, in one
process.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

import hyperruntime as hr
from tests.bench.measure import Row, in_turn, seconds

THEIRS = "theirs"
ENGINES = ("podman", "docker")
CONTENTS = "0123456789abcde\n" * 256  # 4 KiB
ROUNDS, FILE_ROUNDS, STARTS = 40, 15, 7


@attrs.frozen
class Side:
    """A sandbox that runs.

    Attributes:
        act: run ``true`` by one call of the framework.
        files: calls that write and read a file of 4 KiB, by their name in the table.
        close: end the sandbox.
    """

    act: Callable[[], object]
    files: Mapping[str, Callable[[], object]]
    close: Callable[[], object]


@attrs.frozen(kw_only=True)
class Contest:
    """What is measured.

    Attributes:
        title: the framework and its version.
        beside: the name of the sandbox that ours is compared with.
        note: what a reader must know about that sandbox, or "".
        wanted: how many times faster an action of ours must be; None: nothing is promised.
        action: what one action is.
        start: start a sandbox: ``THEIRS``, or ours on one of ``ENGINES``.
    """

    title: str
    beside: str
    note: str = ""
    wanted: int | None = None
    action: str = "`true`"
    start: Callable[[str], Side]


def build_with_packages(reference: str, containerfile: str, base: str) -> None:
    """Build an image on both engines; its context is the packages of this environment.

    Args:
        reference: the new image.
        containerfile: its text, with ``{image}`` for the image that it starts from.
        base: the recipe of that image.
    """
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "Containerfile")
        for engine in ENGINES:
            with hr.open_runtime(engine) as runtime:
                path.write_text(containerfile.format(image=runtime.images.ensure(base)))
                packages = sysconfig.get_path("purelib")
                runtime.images.build(reference, containerfile=path, context=packages, force=True)


def contest_rows(contest: Contest) -> list[Row]:
    """Measure a contest."""
    names = (THEIRS, *ENGINES)
    sides = {}
    try:
        for name in names:
            sides[name] = contest.start(name)
        acts = in_turn({name: side.act for name, side in sides.items()}, ROUNDS)
        rows = _rows(contest, f"one action ({contest.action})", acts, contest.wanted)
        for what in sides[THEIRS].files:
            took = in_turn({name: side.files[what] for name, side in sides.items()}, FILE_ROUNDS)
            rows += _rows(contest, what, took)
    finally:
        for side in sides.values():
            side.close()
    return rows + _rows(contest, "start, and one action", _starts(contest, names))


def _starts(contest: Contest, names: tuple[str, ...]) -> dict[str, float]:
    """Return the median seconds from the start of a sandbox to the end of its first action; its end
    is not measured.
    """
    started: list[Side] = []

    def start(name: str) -> None:
        started.append(contest.start(name))
        started[-1].act()

    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(STARTS):
        for name in names:
            times[name].append(seconds(lambda name=name: start(name)))  # type: ignore[misc]
            started.pop().close()
    return {name: sorted(values)[STARTS // 2] for name, values in times.items()}


def _rows(
    contest: Contest, what: str, took: Mapping[str, float], wanted: int | None = None
) -> list[Row]:
    return [
        Row(
            what=f"{what}, on {engine}",
            value=took[engine] * 1e3,
            unit="ms",
            compared_to=f"{contest.beside}: {took[THEIRS] * 1e3:.1f} ms",
            ratio=took[THEIRS] / took[engine],
            wanted="" if wanted is None else f"{wanted}x faster",
            holds=None if wanted is None else took[THEIRS] / took[engine] >= wanted,
        )
        for engine in ENGINES
    ]
