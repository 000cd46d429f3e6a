"""The kinds of problems that the search knows, by the problem's name."""

from circles import Circles
from discrete.capsets import CapSets
from discrete.kissing import Kissing
from discrete.networks import Sorting
from discrete.products import Product
from discrete.rulers import Golomb
from discrete.sums import Sums
from points import Convex, Ratio, Triangles
from steps import Autocorrelation, Flat, Overlap
from uncertainty import Uncertainty


def kind_of(name):
    """Return the kind of a problem.

    Raises:
        ValueError: the search does not know it.
    """
    modulo_2 = name.endswith("-mod2")
    family, _, last = name.removesuffix("-mod2").rpartition("-")
    makers = {
        "circles": lambda: Circles(int(last), square=True),
        "rectangle": lambda: Circles(int(last), square=False),
        "heilbronn-triangle": lambda: Triangles(int(last)),
        "heilbronn-convex": lambda: Convex(int(last)),
        "ratio": lambda: Ratio(int(last), 2),
        "ratio-space": lambda: Ratio(int(last), 3),
        "autocorrelation": lambda: Flat() if last == "2" else Autocorrelation(last == "3"),
        "golomb": lambda: Golomb(int(last)),
        "sorting": lambda: Sorting(int(last)),
        "capset": lambda: CapSets(int(last)),
        "kissing": lambda: Kissing(int(last)),
        "matmul": lambda: Product(tuple(map(int, last)), signed=not modulo_2),
        "sums": Sums,
        "": Uncertainty if last == "uncertainty" else Overlap,
    }
    if family not in makers or not (family or name in ("overlap", "uncertainty")):
        raise ValueError(f"the solver does not know the problem {name!r}")
    return makers[family]()
