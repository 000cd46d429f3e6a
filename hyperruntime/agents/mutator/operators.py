"""Operators that mutate and recombine packing programs; each one changes a program in place.

An operator returns one sentence about its change, or None if it changes nothing.
"""

import math

from genome import SLOTS, constants, with_constant

MOST_STAGES = 4
NOVELTY = 0.01
TEMPERATURE = 0.03
FLOOR = 0.1


class Workshop:
    """The input of operators: the library of blocks, the scored programs and the random
    generator.
    """

    def __init__(self, library, scored, rng):
        self.library = library
        self.scored = scored  # [(generation name, score, Program)]
        self.rng = rng
        self.top = max((score for _, score, _ in scored), default=0.0)

    def merit(self, allele):
        """Return the best score of a program with a block; an untried block counts slightly above
        the best score.
        """
        scores = [score for _, score, program in self.scored if allele in program.alleles()]
        return max(scores, default=self.top + NOVELTY)

    def choose(self, alleles):
        """Draw a block; better blocks are more likely."""
        alleles = sorted(alleles)
        weights = [self.weight(self.merit(allele)) for allele in alleles]
        return self.rng.choices(alleles, weights)[0]

    def weight(self, score):
        """Return the weight of a score in a draw; it is never 0, because a bad block may be good in
        combination.
        """
        return FLOOR + math.exp((score - self.top) / TEMPERATURE)

    def why(self, allele):
        scores = [score for _, score, program in self.scored if allele in program.alleles()]
        return f"best score with it {max(scores):.4f}" if scores else "never tried"


def swap_block(program, shop, slots=SLOTS):
    """Put another block into one slot.

    Args:
        program: the program to change.
        shop: the library, the scores and the random generator.
        slots: the slots to choose from.
    """
    allele = shop.choose(
        key for key in shop.library if key[0] in slots and key not in program.blocks
    )
    slot, name = allele
    old = program.name_in(slot)
    program.put(slot, name, shop.library[allele])
    return f"replaced the {slot} block {old!r} by {name!r} ({shop.why(allele)})"


def widen_search(program, shop):
    """Put another block into the search slot."""
    return swap_block(program, shop, ("search",))


def add_stage(program, shop):
    """Insert a stage from the library, or replace one (always if the pipeline is full)."""
    fresh = [key for key in shop.library if key[0] == "stage" and key[1] not in program.stages]
    if not fresh:
        return None
    allele = shop.choose(fresh)
    program.put(*allele, shop.library[allele])
    place = shop.rng.randint(0, len(program.stages))
    if len(program.stages) >= MOST_STAGES or (program.stages and shop.rng.random() < 0.3):
        place = min(place, len(program.stages) - 1)
        old = program.stages[place]
        program.stages[place] = allele[1]
        return f"replaced stage {place + 1} {old!r} by {allele[1]!r} ({shop.why(allele)})"
    program.stages.insert(place, allele[1])
    return f"inserted {allele[1]!r} as stage {place + 1} ({shop.why(allele)})"


def drop_stage(program, shop):
    """Remove a stage, unless it is the only one."""
    if len(program.stages) < 2:
        return None
    place = shop.rng.randrange(len(program.stages))
    return f"removed stage {place + 1} {program.stages.pop(place)!r}"


def repeat_stage(program, shop):
    """Repeat a stage at a random position of the pipeline."""
    if not program.stages or len(program.stages) >= MOST_STAGES:
        return None
    name = shop.rng.choice(program.stages)
    place = shop.rng.randint(0, len(program.stages))
    program.stages.insert(place, name)
    return f"repeated {name!r} as stage {place + 1}"


def tune(program, shop):
    """Change one to three named numbers by random factors; integers stay integers."""
    used = [
        key
        for key in sorted(program.blocks)
        if key in program.alleles() and constants(program.blocks[key])
    ]
    said = []
    for _ in range(shop.rng.randint(1, 3)):
        key = shop.rng.choice(used)
        name, old = shop.rng.choice(sorted(constants(program.blocks[key]).items()))
        new = _nearby(old, shop.rng)
        program.blocks[key] = with_constant(program.blocks[key], name, new)
        said.append(f"{name} from {old!r} to {new!r}")
    return "tuned " + ", ".join(said)


def cross(program, shop):
    """Take parts of another good program, each with probability 1/2."""
    others = [item for item in shop.scored if item[2].describe() != program.describe()]
    if not others:
        return None
    weights = [shop.weight(score) - FLOOR for _, score, _ in others]
    name, score, donor = shop.rng.choices(others, weights)[0]
    taken = []
    for slot in SLOTS:
        if shop.rng.random() < 0.5:
            program.put(slot, donor.name_in(slot), donor.blocks[slot, donor.name_in(slot)])
            taken.append(f"{slot} {donor.name_in(slot)!r}")
    if donor.stages and (shop.rng.random() < 0.5 or not taken):
        for stage in donor.stages:
            program.put("stage", stage, donor.blocks["stage", stage])
        program.stages = list(donor.stages)
        taken.append(f"the stages ({', '.join(donor.stages)})")
    return f"took {', '.join(taken)} from generation {name} (score {score:.4f})" if taken else None


def _nearby(value, rng):
    if type(value) is int:
        return max(1, round(value * math.exp(rng.gauss(0, 0.5))))
    if 0.5 <= value < 1:  # for momentum and similar numbers, the distance to 1 matters
        return (
            round(1 - (1 - value) * math.exp(rng.gauss(0, 0.5)), 4)
            if value > 0.5
            else round(rng.uniform(0.1, 0.9), 3)
        )
    return float(f"{(value or 0.01) * math.exp(rng.gauss(0, 0.5)):.3g}")


OPERATORS = {
    swap_block: 4.0,
    add_stage: 3.0,
    drop_stage: 0.7,
    repeat_stage: 0.7,
    tune: 3.0,
    cross: 2.5,
}


def plan(program, shop):
    """Return the operators for one child: at most one for the program's situation, then one or two
    drawn by weight.

    A program without stages first gets one. A program that searches only once gets, with
    probability 1/2, another search first.

    Args:
        program: the program to change.
        shop: the library, the scores and the random generator.
    """
    asked = []
    if not program.stages:
        asked.append(add_stage)
    elif program.name_in("search") == "once" and shop.rng.random() < 0.5:
        asked.append(widen_search)
    count = shop.rng.choice((1, 1, 2))
    return asked + shop.rng.choices(list(OPERATORS), list(OPERATORS.values()), k=count)
