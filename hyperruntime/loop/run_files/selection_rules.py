"""The shipped selection rules: the formulas, and ``islands``, ``map_elites`` and ``novelty``, which
keep a population diverse.

They store nothing: each follows from the archive, so a resumed run makes the same choices. Sources
of the ideas: docs/design/loop.md#choosing-parents.
"""

from __future__ import annotations

import heapq
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from hyperruntime.domain import is_metric_name
from hyperruntime.errors import SpecError, name_hint
from hyperruntime.git.patch import changed_lines
from hyperruntime.loop.run_files.parent_rules import (
    Candidate,
    GenId,
    number_of,
    select_parent,
    weights,
)
from hyperruntime.loop.run_files.selection import Selection

_WITHIN = "score_child_prop"  # the rule among the members of an island
_MOST_LINES = 500  # of a generation's changed lines, those with the smallest check sums
_MOST_CHANGES = 5000  # likewise, of one diff
_MOST_COMPARED = 100  # candidates; each is compared with each other
_FIELD = "parent_selection"


def _numbers(rule: str, argument: str, defaults: Sequence[int]) -> list[int]:
    """Return the numbers of an argument such as ``4,5``; later ones may be left out."""
    parts = argument.split(",") if argument else []
    if len(parts) > len(defaults) or not all(re.fullmatch(r"[1-9]\d{0,5}", one) for one in parts):
        allowed = f"{rule}:{','.join(map(str, defaults))} or other whole numbers from 1"
        raise SpecError(_FIELD, f"{rule}:{argument}", allowed)
    return [*map(int, parts), *defaults[len(parts) :]]


@attrs.frozen
class Formula:
    """A selection rule by one of the formulas.

    Attributes:
        name: one of ``FORMULAS``.
    """

    name: str

    def __call__(self, run: Selection) -> GenId:
        """Return the parent by :func:`select_parent`."""
        return select_parent(self.name, run.candidates, seed=run.seed, generation=run.generation)


# The entry points of the formulas: classes without an argument.
RANDOM = partial(Formula, "random")
LATEST = partial(Formula, "latest")
BEST = partial(Formula, "best")
SCORE_PROP = partial(Formula, "score_prop")
SCORE_CHILD_PROP = partial(Formula, "score_child_prop")
DGM = partial(Formula, "dgm")


class Islands:
    """Choose within separate populations, which exchange their best members now and then.

    With ``islands:COUNT,ROUNDS``, generation *n* belongs to island *n* modulo COUNT. Its parent is
    a member of its island, by the rule ``score_child_prop``. In each ROUNDS-th round over all
    islands it is the best member of the island before: so good changes migrate around the ring.
    """

    def __init__(self, argument: str = "") -> None:
        """Read ``COUNT,ROUNDS``; the default is 4 islands and migration in each fifth round.

        Raises:
            SpecError: the argument is invalid.
        """
        self._count, self._rounds = _numbers("islands", argument, (4, 5))

    def __call__(self, run: Selection) -> GenId:
        """Return a member of an island; the first generation as long as the island is empty."""
        turn, island = divmod(run.generation, self._count)
        migrates = turn > 0 and turn % self._rounds == 0
        members = self._members(run, (island - 1) % self._count if migrates else island)
        rule = "best" if migrates else _WITHIN
        return select_parent(rule, members, seed=run.seed, generation=run.generation)

    def _members(self, run: Selection, island: int) -> Sequence[Candidate]:
        own = [
            one
            for one in run.candidates
            if run.parents.get(one.genid) is not None
            and number_of(one.genid) % self._count == island
        ]
        return own or run.candidates[:1]


class MapElites:
    """Choose among the best generations of each behaviour.

    With ``map_elites:METRIC,METRIC``, the range of each metric is divided into ten equal parts, or
    another number after ``/``. Generations in the same part of each metric behave alike; the best
    one of them is their elite. All elites are equally likely.
    """

    def __init__(self, argument: str) -> None:
        """Read ``METRIC,...`` or ``METRIC,.../PARTS``.

        Raises:
            SpecError: the argument is invalid.
        """
        names, slash, parts = argument.partition("/")
        self._names = names.split(",")
        if not all(map(is_metric_name, self._names)) or len(set(self._names)) < len(self._names):
            allowed = "map_elites:METRIC,METRIC/PARTS, with metrics of the domain's scores"
            raise SpecError(_FIELD, f"map_elites:{argument}", allowed)
        (self._parts,) = _numbers("map_elites:METRIC/PARTS", parts, (10,)) if slash else (10,)

    def __call__(self, run: Selection) -> GenId:
        """Return an elite.

        Raises:
            SpecError: the candidates have metrics, but none of this name.
        """
        known = {name for one in run.candidates for name in one.metrics}
        for name in self._names:
            if known and name not in known:
                raise SpecError("metric", name, name_hint(name, known))
        axes = [self._axis(name, run.candidates) for name in self._names]
        elites: dict[tuple[int, ...], Candidate] = {}
        for one, cell in zip(run.candidates, zip(*axes, strict=True), strict=True):
            if cell not in elites or one.score > elites[cell].score:
                elites[cell] = one
        return run.random.choice(list(elites.values())).genid

    def _axis(self, name: str, candidates: Sequence[Candidate]) -> list[int]:
        """Return the part of the metric's range for each candidate; -1 without the metric."""
        values = [one.metrics.get(name) for one in candidates]
        known = [value for value in values if value is not None]
        low = min(known, default=0.0)
        high = max(known, default=0.0)
        width = high / self._parts - low / self._parts  # the difference may be above all floats
        return [
            -1
            if value is None
            else min(self._parts - 1, int(value / width - low / width) if width > 0 else 0)
            for value in values
        ]


class Novelty:
    """Prefer generations whose code differs from that of the others, if their scores are good.

    The code of a generation is the set of lines that the diffs of its lineage added and removed.
    Its novelty is the mean distance to the NEAREST generations that are most like it, and the
    distance of two sets is the part of their lines that only one of them has. The weight is the
    novelty times the weight of ``score_prop``. Only the 100 best candidates take part, with at most
    500 lines each.
    """

    def __init__(self, argument: str = "") -> None:
        """Read ``NEAREST``, the number of neighbours; the default is 5.

        Raises:
            SpecError: the argument is invalid.
        """
        (self._nearest,) = _numbers("novelty", argument, (5,))
        self._code: dict[GenId, frozenset[int]] = {}  # that of a finished generation is constant

    def __call__(self, run: Selection) -> GenId:
        """Return a candidate, by its weight."""
        best = heapq.nlargest(_MOST_COMPARED, run.candidates, key=lambda one: one.score)
        for one in best:
            if one.genid not in self._code:
                self._code[one.genid] = self._changed(run, one.genid)
        code = [self._code[one.genid] for one in best]
        novelty = [self._novelty(place, code) for place in range(len(best))]
        chances = [
            far * weight for far, weight in zip(novelty, weights("score_prop", best), strict=True)
        ]
        if not math.fsum(chances) > 0:  # all have the same code, or weights too small for floats
            chances = [1.0] * len(best)
        return run.random.choices(best, weights=chances)[0].genid

    def _novelty(self, place: int, code: Sequence[frozenset[int]]) -> float:
        own = code[place]
        others = (_distance(own, other) for number, other in enumerate(code) if number != place)
        near = heapq.nsmallest(self._nearest, others)
        return math.fsum(near) / len(near) if near else 0.0

    def _changed(self, run: Selection, genid: GenId) -> frozenset[int]:
        """Return the changes of a lineage; a line that is added and later removed is none."""
        found: set[int] = set()
        for one in run.lineage(genid):
            for line in heapq.nsmallest(_MOST_CHANGES, _numbered(run.diff(one)), key=abs):
                if -line in found:
                    found.discard(-line)
                else:
                    found.add(line)
        return frozenset(heapq.nsmallest(_MOST_LINES, found, key=abs))


def _distance(left: frozenset[int], right: frozenset[int]) -> float:
    """Return the part of the elements that only one of two sets has."""
    both = len(left & right)
    either = len(left) + len(right) - both
    return 1 - both / either if either else 0.0


def _numbered(diff: str) -> Iterator[int]:
    """Yield a number for each line that a diff adds, and the negative one for each it removes."""
    for sign, lines in zip((1, -1), changed_lines(diff.encode()), strict=True):
        for line in filter(None, map(bytes.strip, lines)):
            yield sign * (1 + zlib.crc32(line))
