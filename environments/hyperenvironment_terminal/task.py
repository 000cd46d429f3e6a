"""One task of a terminal as a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

SAME, FRESH = "same", "fresh"
TEST_SCRIPT, TEST_STATE, TEST_BEGINNING = "test.sh", "test_final_state.py", "test_initial_state.py"


@attrs.frozen(kw_only=True)
class Resources:
    """What a task says it needs; None where it says nothing.

    Attributes:
        cpus: cores.
        memory_bytes: memory.
        disk_bytes: what may be written.
        gpus: how many.
        internet: whether it may, or may not, reach the internet.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    gpus: int = 0
    internet: bool | None = None


@attrs.frozen(kw_only=True)
class Task:
    """A task.

    Attributes:
        id: its directory's name, or what its row says.
        instruction: what the agent is told.
        image: a ready image's reference, or "".
        recipe: the Containerfile or definition file that makes its image, where ``image`` is "".
        context: the directory that the recipe copies from.
        tests: the directory of its tests: ``test.sh``, or ``test_final_state.py`` for pytest.
        solution: the directory of a known solution, ``solve.sh`` in it, if there is one.
        workdir: where the agent and the tests begin.
        agent_timeout_s: how long the agent may take, or None.
        verifier_timeout_s: how long the tests may take.
        resources: what it needs.
        env: of every command; ``${NAME}`` and ``${NAME:-default}`` stand for the host's.
        verifier_env: of the tests, beyond that.
        solution_env: of the known solution, beyond that.
        verify: ``same``, ``fresh`` or "" where the task leaves it open.
        metadata: whatever else it says, for reports.
    """

    id: str
    instruction: str
    image: str = ""
    recipe: Path | None = None
    context: Path | None = None
    tests: Path
    solution: Path | None = None
    workdir: str
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    resources: Resources = Resources()
    env: Mapping[str, str] = attrs.field(factory=dict)
    verifier_env: Mapping[str, str] = attrs.field(factory=dict)
    solution_env: Mapping[str, str] = attrs.field(factory=dict)
    verify: str = ""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def uses_pytest(self) -> bool:
        """Whether its tests are a file for pytest rather than a script that writes a reward."""
        return not (self.tests / TEST_SCRIPT).is_file()
