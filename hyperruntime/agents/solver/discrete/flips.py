"""Random walks among the decompositions of a product of matrices, modulo 2.

A factor is an integer whose bits are its entries. Two terms that share a factor can be changed
without changing their sum: ``a b c + a d e = a (b + d) c + a d (e - c)``. Terms that share two
factors, or have a factor zero, become fewer. Source: Kauers and Moosbauer 2022, arXiv:2212.01175. A
walk that finds nothing splits a term: Arai, Ichikawa and Hukushima 2024, arXiv:2312.16960.
"""

PAIRS = ((1, 2), (0, 2), (0, 1))


class Flips:
    """Terms ``[a, b, c]``, and for each factor which terms have it."""

    def __init__(self, terms):
        self.terms = [list(term) for term in terms]
        self.having = [{}, {}, {}]
        for t in range(len(self.terms)):
            for k in range(3):
                self.note(t, k)
        self.reduce()

    def copy(self):
        return [list(term) for term in self.terms]

    def note(self, t, k):
        self.having[k].setdefault(self.terms[t][k], []).append(t)

    def change(self, t, k, factor):
        here = self.having[k][self.terms[t][k]]
        here.remove(t)
        self.terms[t][k] = factor
        self.note(t, k)

    def remove(self, t):
        """Take a term away; the last one gets its number."""
        for k, factor in enumerate(self.terms[t]):
            self.having[k][factor].remove(t)
        last = len(self.terms) - 1
        if t != last:
            for k, factor in enumerate(self.terms[last]):
                here = self.having[k][factor]
                here[here.index(last)] = t
            self.terms[t] = self.terms[last]
        self.terms.pop()

    def flip(self, draw):
        """Try a random flip, and return whether it made terms fewer."""
        k, t = int(draw.random() * 3), int(draw.random() * len(self.terms))
        one = self.terms[t]
        here = self.having[k][one[k]]
        if len(here) < 2:
            return False
        u = here[int(draw.random() * (len(here) - 1))]
        u = here[-1] if u == t else u
        other = self.terms[u]
        x, y = PAIRS[k] if draw.random() < 0.5 else PAIRS[k][::-1]
        self.change(t, x, one[x] ^ other[x])
        self.change(u, y, one[y] ^ other[y])
        alone = len(self.having[x][one[x]]) == len(self.having[y][other[y]]) == 1
        if alone and one[x] and other[y]:
            return False
        before = len(self.terms)
        self.reduce_at(max(t, u))
        if len(self.terms) == before:
            self.reduce_at(min(t, u))
        return len(self.terms) < before and self.reduce()

    def reduce_at(self, t):
        """Take a term away or join it with another one, and return whether it was possible."""
        term = self.terms[t]
        if 0 in term:
            self.remove(t)
            return True
        for first, second, third in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
            for u in self.having[first][term[first]]:
                if u != t and self.terms[u][second] == term[second]:
                    self.change(u, third, self.terms[u][third] ^ term[third])
                    self.remove(t)
                    return True
        return False

    def reduce(self):
        """Join terms and take them away until that is not possible; return True."""
        t = 0
        while t < len(self.terms):
            t = 0 if self.reduce_at(t) else t + 1
        return True

    def split(self, draw):
        """Write a term as the sum of two, of which one shares a factor with another term:
        ``a b c = d b c + (a - d) b c``.
        """
        t, u = draw.sample(range(len(self.terms)), 2)
        k = draw.randrange(3)
        new = list(self.terms[t])
        new[k] ^= self.terms[u][k]
        if new[k]:
            self.change(t, k, self.terms[u][k])
            self.terms.append(new)
            for k in range(3):
                self.note(len(self.terms) - 1, k)
