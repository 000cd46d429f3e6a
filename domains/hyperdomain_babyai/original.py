"""The five BabyAI tasks of HyperAgents, on an unchanged minigrid.

HyperAgents plays the level MixedTrainLocal of a fork of minigrid, once for each kind of mission.
The level here has the same rooms, objects and kinds of missions. Its worlds are other ones.

Source: BALROG (arXiv:2411.13543) and its configuration, with no distracting objects.
"""

from __future__ import annotations

from typing import Any

from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

# Pairs that the level does not show: they are for tests of generalisation.
_HELD_OUT = ("yellow box", "red key", "red door", "green ball", "grey door")
_DOOR_COLORS = ("yellow", "green", "blue", "purple")


class Local(RoomGridLevel):
    """One room of 8 by 8 cells with the objects of the mission; for ``open``, a second room behind
    a locked door.
    """

    def __init__(self, kind: str) -> None:
        """Choose the kind of mission.

        Args:
            kind: ``goto``, ``pickup``, ``open``, ``putnext`` or ``pick_up_seq_go_to``.
        """
        self._kind = kind
        super().__init__(room_size=8, num_rows=1, num_cols=2 if kind == "open" else 1)

    def gen_mission(self) -> None:
        """Place the agent and the objects, and choose the mission."""
        if self._kind == "open":
            self.instrs = self._open()
        else:
            self.place_agent()
            objects = self.add_distractors(
                num_distractors=1 if self._kind in ("goto", "pickup") else 2, all_unique=True
            )
            self.check_objs_reachable()
            self.instrs = self._with([ObjDesc(one.type, one.color) for one in objects])
        if any(pair in self.instrs.surface(self) for pair in _HELD_OUT):
            raise RejectSampling("a pair that is held out")

    def _open(self) -> Any:  # noqa: ANN401 - minigrid has no types
        """Lock the door, and put its key into the agent's room."""
        ours = self._rand_int(0, 2)
        color = self._rand_elem(_DOOR_COLORS)
        self.add_door(ours, 0, 0 if ours == 0 else 2, color, locked=True)
        self.add_object(ours, 0, "key", color)
        self.place_agent(ours, 0)
        self.check_objs_reachable()
        return OpenInstr(ObjDesc("door", self._rand_elem((None, color))))

    def _with(self, described: list[Any]) -> Any:  # noqa: ANN401 - minigrid has no types
        first = described[0]
        last = described[-1]
        if self._kind == "goto":
            return GoToInstr(first)
        if self._kind == "pickup":
            return PickupInstr(first)
        if self._kind == "putnext":
            return PutNextInstr(first, last)
        if self._rand_bool():
            return BeforeInstr(PickupInstr(first), GoToInstr(last))
        return AfterInstr(GoToInstr(last), PickupInstr(first))
