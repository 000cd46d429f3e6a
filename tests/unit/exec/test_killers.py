"""Killing process trees for several callers at once; each caller gets the result for its own
tree.
"""

from __future__ import annotations

import threading

import pytest

from hyperruntime.exec.killers import Tree, TreeKiller
from hyperruntime.host.process import wait_until

TREE = Tree(0, "file locks", ((5, 9),))


class Supervisor:
    """Answers each sweep with 0 after a signal of the test; raises an interrupt in the sweep with
    these words.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.fails_for = ""

    def ask(self, verb: str, words: str, timeout_s: float) -> int | None:
        self.asked.append(words)
        self.may_answer.wait(120)
        if words == self.fails_for:
            raise KeyboardInterrupt
        return 0


def test_a_tree_is_written_as_its_group_and_its_marks() -> None:
    tree = Tree(7, "file locks", ((5, 5), (6, 9)))
    assert tree.words(groups=True) == "7:5 7:6-9"
    assert tree.words(groups=False) == "0:5 0:6-9"


def test_waiting_callers_share_a_sweep() -> None:
    supervisor = Supervisor()
    ender = TreeKiller(supervisor.ask, lambda: False)
    ended: list[bool] = []
    callers = [threading.Thread(target=lambda: ended.append(ender.end(TREE))) for _ in range(5)]
    for caller in callers:
        caller.start()
    assert wait_until(lambda: len(ender._waiting) == 4, 120)
    supervisor.may_answer.set()
    for caller in callers:
        caller.join(120)
    assert ended == [True] * 5
    assert supervisor.asked == ["0:5-9", " ".join(["0:5-9"] * 4)]


def test_the_result_of_an_interrupted_caller_is_not_given_to_a_later_one() -> None:
    """A caller may be interrupted while another caller sweeps for it; a new request for the same
    tree sweeps again.
    """
    supervisor = Supervisor()
    ender = TreeKiller(supervisor.ask, lambda: False)
    first = threading.Thread(target=ender.end, args=(Tree(0, "file locks", ((1, 1),)),))
    first.start()
    assert wait_until(lambda: supervisor.asked == ["0:1"], 120)

    class Interrupted(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ender, "_turn", Interrupted(ender._turn._lock))  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            ender.end(TREE)
    supervisor.may_answer.set()
    first.join(120)
    assert ender.end(TREE)
    assert supervisor.asked == ["0:1", "0:5-9"]


def test_a_caller_whose_shared_sweep_was_interrupted_repeats_it() -> None:
    supervisor = Supervisor()
    supervisor.fails_for = "0:5-9 0:5-9"
    ender = TreeKiller(supervisor.ask, lambda: False)
    how: list[str] = []

    def end(tree: Tree) -> None:
        try:
            how.append(f"ended {ender.end(tree)}")
        except KeyboardInterrupt:
            how.append("interrupted")

    first = threading.Thread(target=end, args=(Tree(0, "file locks", ((1, 1),)),))
    others = [threading.Thread(target=end, args=(TREE,)) for _ in range(2)]
    first.start()
    assert wait_until(lambda: supervisor.asked == ["0:1"], 120)
    for other in others:
        other.start()
    assert wait_until(lambda: len(ender._waiting) == 2, 120)
    supervisor.may_answer.set()
    for thread in (first, *others):
        thread.join(120)
    assert sorted(how) == ["ended True", "ended True", "interrupted"]
    assert supervisor.asked == ["0:1", "0:5-9 0:5-9", "0:5-9"]
