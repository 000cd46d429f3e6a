"""The number of loop modules that one generation enters stays small, so that a reader can follow
it.

The generation is one of the default contract; that of HyperAgents has more steps, and is not
counted.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import FrameType

import hyperruntime.loop
from hyperruntime.loop.generation.generation import make_generation
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.testing import FakeRuntime, make_agent_repository
from hyperruntime.testing.fake import FakeContainer
from tests.runs import options_below

LOOP = Path(hyperruntime.loop.__file__).parent
MOST_TO_THE_CONTAINER, MOST_TO_THE_RECORD = 12, 16


class EnteredModules:
    """Profile function for threads; records, in order, the loop modules that the latest generation
    entered.

    Generations run in threads of the executor, so the main thread, which waits for them, is not
    recorded.
    """

    def __init__(self) -> None:
        self.to_the_container: list[str] = []
        self.to_the_record: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code is make_generation.__code__:
            self.to_the_container, self.to_the_record = [], []
        if code is FakeContainer.exec.__code__:
            self.to_the_container = self.to_the_container or list(self.to_the_record)
        path = Path(code.co_filename)
        if (
            path.is_relative_to(LOOP)
            and (name := str(path.relative_to(LOOP))) not in self.to_the_record
        ):
            self.to_the_record.append(name)


def test_a_generation_enters_few_modules(tmp_path: Path) -> None:
    entered = EnteredModules()
    agent = str(make_agent_repository(tmp_path / "agent"))
    options = options_below(tmp_path, agent=agent, max_generation=1)
    threading.setprofile(entered)
    try:
        summary = start_run(FakeRuntime(), plan_run(options))
    finally:
        threading.setprofile(None)
    assert [record.failure for record in summary.generations] == [None, None]
    assert entered.to_the_container[0] == "generation/generation.py"
    assert len(entered.to_the_container) <= MOST_TO_THE_CONTAINER, entered.to_the_container
    assert len(entered.to_the_record) <= MOST_TO_THE_RECORD, entered.to_the_record
