"""Plays missions in rooms: goes to what the mission names, and wanders until it sees it."""

import random
import re

SEEN = re.compile(
    r"You see an? (?:(open|closed|locked) )?(?:(\w+) )?(door|key|ball|box|wall) (.*)\."
)
NAMED = re.compile(r"(?:(red|green|blue|purple|yellow|grey) )?(door|key|ball|box)")


def steps(text, *ways):
    for sign, way in ways:
        if found := re.search(rf"(\d+) steps? {way}", text):
            return sign * int(found[1])
    return 0


class Player:
    def __init__(self):
        self.goals = None
        self.random = random.Random(1)

    def act(self, inputs):
        if self.goals is None:
            self.goals = goals_of(inputs["mission"])
        text = inputs["observation"]
        self.seen = [
            (found[1], found[2], found[3], steps(found[4], (1, "forward")),
             steps(found[4], (1, "to the right"), (-1, "to the left")))
            for found in SEEN.finditer(text)
        ]  # fmt: skip
        carried = re.search(r"You carry an? (?:\w+ )*?(\w+) (\w+)\.", text)
        self.carried = carried and (carried[1], carried[2])
        while len(self.goals) > 1 and self.done(*self.goals[0]):
            self.goals.pop(0)
        return self.pursue(*self.goals[0])

    def done(self, verb, wanted):
        if verb == "pick up":
            return self.carried is not None and fits(wanted, *self.carried)
        where = self.find(wanted)
        return verb == "go to" and where is not None and where[3:] == (1, 0)

    def find(self, wanted):
        return next((one for one in self.seen if fits(wanted, one[1], one[2])), None)

    def pursue(self, verb, wanted):
        where = self.find(wanted)
        if where is None:
            return self.wander()
        if verb == "open" and where[0] == "locked" and self.carried != (where[1], "key"):
            return self.pursue("pick up", (where[1], "key"))
        last = {"go to": "turn left", "pick up": "pick up", "open": "toggle", "drop at": "drop"}
        if where[3:] == ((2, 0) if verb == "drop at" else (1, 0)):
            return "drop" if verb == "pick up" and self.carried else last[verb]
        return self.walk(where[3], where[4])

    def walk(self, forward, right):
        if forward > (1 if right == 0 else 0) and not self.blocked():
            return "go forward"
        if right == 0 or (forward > 0 and self.blocked()):
            return (
                self.random.choice(("turn left", "turn right")) if self.blocked() else "go forward"
            )
        return "turn right" if right > 0 else "turn left"

    def blocked(self):
        return any(
            one[3:] == (1, 0) and not (one[2] == "door" and one[0] == "open") for one in self.seen
        )

    def wander(self):
        ahead = next((one for one in self.seen if one[3:] == (1, 0)), None)
        if ahead and ahead[2] == "door" and ahead[0] == "closed":
            return "toggle"
        if self.blocked() or self.random.random() < 0.15:
            return self.random.choice(("turn left", "turn right", "turn right"))
        return "go forward"


def fits(wanted, color, kind):
    return kind == wanted[1] and wanted[0] in (None, color)


def goals_of(mission):
    first, _, later = mission.partition(", then ")
    if " after you " in mission:
        later, _, first = mission.partition(" after you ")
    return [goal for part in (first, later) if part for goal in goal_of(part)]


def goal_of(part):
    things = [(found[1], found[2]) for found in NAMED.finditer(part)] or [(None, "door")]
    if part.startswith("put"):
        return [("pick up", things[0]), ("drop at", things[-1])]
    verb = next(one for one in ("pick up", "open", "go to") if one in part)
    return [(verb, things[0])]
