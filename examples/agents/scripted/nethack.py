"""Plays NetHack: walks to the stairs down, else to the nearest place beside the unknown."""

import random
from collections import deque

MOVES = {
    "north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1),
    "northeast": (-1, 1), "southeast": (1, 1), "southwest": (1, -1), "northwest": (-1, -1),
}  # fmt: skip
STRAIGHT = 4
FLOOR = ".#<>_{^%$?![)(=/*\"`'"


class Player:
    def __init__(self):
        self.random = random.Random(1)
        self.stairs = None
        self.tried = {}
        self.before = None
        self.visited = set()
        self.doors = set()
        self.searches = 0

    def act(self, inputs):
        rows = inputs["observation"].split("\n")
        self.map = [row.ljust(80) for row in rows[1:22]]
        if rows[0].rstrip().endswith(("?", "]", ":")) or "(end)" in inputs["observation"]:
            return self.one_of(inputs, "esc", "more", *MOVES)
        level = next((word for row in rows[22:] for word in row.split() if "Dlvl" in word), "")
        if level != getattr(self, "level", level):
            self.stairs, self.tried, self.visited, self.doors = None, {}, set(), set()
        self.level = level
        here = next(((y, x) for y, row in enumerate(self.map) for x, cell in enumerate(row)
                     if cell == "@"), None)  # fmt: skip
        for y, row in enumerate(self.map):
            if ">" in row:
                self.stairs = (y, row.index(">"))
            self.doors |= {(y, x) for x, cell in enumerate(row) if cell == "+"}
        if here is None:
            return self.one_of(inputs, "esc", *MOVES)
        self.visited.add(here)
        if here == self.stairs and "down" in inputs["actions"]:
            return "down"
        if self.before and self.before[0] == here:
            self.tried[self.before[1]] = self.tried.get(self.before[1], 0) + 1
        move, target = self.way(here)
        if move is None or self.random.random() < 0.02:
            return self.search(inputs)
        self.searches = 0
        self.before = (here, target)
        return move

    def one_of(self, inputs, *names):
        self.before = None
        return next(name for name in names if name in inputs["actions"])

    def search(self, inputs):
        """Look for hidden doors; then begin to explore again, from another place."""
        self.before = None
        self.searches += 1
        if "search" in inputs["actions"] and self.searches < 10:
            return "search"
        self.tried.clear()
        self.visited = set(self.random.sample(sorted(self.visited), len(self.visited) // 2))
        return self.random.choice(list(MOVES))

    def cell(self, place):
        y, x = place
        return self.map[y][x] if 0 <= y < len(self.map) and 0 <= x < 80 else "|"

    def enters(self, start, end, straight):
        cell = self.cell(end)
        if self.tried.get(end, 0) > 3:
            return False
        if straight:
            return cell in FLOOR or cell.isalpha() or end in self.doors or end == self.stairs
        return cell in FLOOR and self.cell(start) in FLOOR + "@"

    def way(self, here):
        """Return the first move of the shortest way to the stairs or to the unknown."""
        ways = {here: None}
        queue = deque([here])
        best = None
        while queue:
            place = queue.popleft()
            if place == self.stairs:
                best = place
                break
            if best is None and place != here and self.beside_unknown(place):
                best = place
                if self.stairs is None:
                    break
            for number, (name, (dy, dx)) in enumerate(MOVES.items()):
                other = (place[0] + dy, place[1] + dx)
                if other not in ways and self.enters(place, other, number < STRAIGHT):
                    ways[other] = (place, name)
                    queue.append(other)
        if best is None:
            return None, None
        while ways[best][0] != here:
            best = ways[best][0]
        return ways[best][1], best

    def beside_unknown(self, place):
        if place in self.visited:
            return False
        near = [self.cell((place[0] + dy, place[1] + dx)) for dy, dx in MOVES.values()]
        return self.cell(place) == "#" or place in self.doors or " " in near[:STRAIGHT]
