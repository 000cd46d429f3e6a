"""The kinds of problems that the search knows, by the problem's name."""

from circles import Circles
from points import Convex, Ratio, Triangles
from steps import Autocorrelation, Flat, Overlap


def kind_of(name):
    """Return the kind of a problem.

    Raises:
        ValueError: the search does not know it.
    """
    family, _, last = name.rpartition("-")
    makers = {
        "circles": lambda: Circles(int(last), square=True),
        "rectangle": lambda: Circles(int(last), square=False),
        "heilbronn-triangle": lambda: Triangles(int(last)),
        "heilbronn-convex": lambda: Convex(int(last)),
        "ratio": lambda: Ratio(int(last), 2),
        "ratio-space": lambda: Ratio(int(last), 3),
        "autocorrelation": lambda: Flat() if last == "2" else Autocorrelation(last == "3"),
        "": Overlap,
    }
    if family not in makers or (not family and last != "overlap"):
        raise ValueError(f"the solver does not know the problem {name!r}")
    return makers[family]()
