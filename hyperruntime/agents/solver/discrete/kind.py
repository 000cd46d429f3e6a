"""The common part of the kinds of problems without slopes, as the search calls them."""


class Kind:
    """A kind of problem: how its states begin, change and improve.

    Subclasses have ``merit``, ``load`` and ``answer``, as all kinds. Before this constructor they
    set ``starts``, functions ``(kind, rng, size)``, and ``changes``, functions ``(kind, state, rng,
    size)`` of a good state. Both return what ``improved(start, clock, rng)`` improves to a state.
    """

    def __init__(self):
        self.starts = {name: from_nothing(move) for name, move in self.starts.items()}
        self.moves = {name: from_good(move) for name, move in self.changes.items()}

    def improve(self, start, clock, aim):
        return self.improved(start[0], clock, start[1])


def from_nothing(move):
    return lambda kind, pool, rng, size: (move(kind, rng, size), rng)


def from_good(move):
    return lambda kind, pool, rng, size: (move(kind, pool.pick(), rng, size), rng)
