"""Forecast a program's trial result from the results of programs that are like it."""

import math

from genome import SLOTS, constants, parse

REACH = 3.0
SWAP = 1.5
WORST = 0.1
PRIOR_WEIGHT = 0.5
PRIOR_LOSS = 0.01


class Forecast:
    """Known trial results; a forecast is their mean, weighted by similarity.

    A result far below the best counts as ``WORST`` below it, so one failure does not exclude all
    similar programs. A program without similar ones is expected to be about as good as the best, so
    new ideas are tried.
    """

    def __init__(self, library, trials):
        self.library = library
        self.known = []  # [(traits, result)]
        self.kinds = set()  # the blocks and stages of what is known
        for text, result in trials.items():
            try:
                self.learn(parse(text), result)
            except (SyntaxError, ValueError):
                continue

    def learn(self, program, result):
        self.known.append((self._traits(program), result))
        self.kinds.add(program.describe())

    def expect(self, program):
        """Return the expected trial result; 0 if nothing is known."""
        if not self.known:
            return 0.0
        best, mine = max(result for _, result in self.known), self._traits(program)
        weights = [math.exp(-_distance(mine, traits) / REACH) for traits, _ in self.known]
        total = sum(
            weight * max(result, best - WORST)
            for weight, (_, result) in zip(weights, self.known, strict=True)
        )
        return (total + PRIOR_WEIGHT * (best - PRIOR_LOSS)) / (sum(weights) + PRIOR_WEIGHT)

    def _traits(self, program):
        """Return ``{key: number}``: blocks, the count of each stage, the last stage, and how far
        numbers are tuned.
        """
        traits = {(slot, program.name_in(slot)): SWAP for slot in SLOTS}
        traits["last", *program.stages[-1:]] = SWAP
        for stage in program.stages:
            traits["stage", stage] = traits.get(("stage", stage), 0.0) + SWAP
        for key in program.alleles():
            usual = constants(self.library.get(key, program.blocks[key]))
            for name, value in constants(program.blocks[key]).items():
                if value > 0 and usual.get(name, 0) > 0:
                    traits[name] = math.log(value / usual[name])
        return traits


def _distance(one, other):
    """Return the sum of the differences; one of a tuned number counts up to 1."""
    gaps = [
        (key, abs(one.get(key, 0.0) - other.get(key, 0.0))) for key in one.keys() | other.keys()
    ]
    # exact, in any order
    return math.fsum(min(1.0, gap) if isinstance(key, str) else gap for key, gap in gaps)
