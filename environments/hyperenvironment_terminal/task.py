"""The value of one terminal task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

SAME, FRESH = "same", "fresh"
TEST_SCRIPT, TEST_STATE, TEST_BEGINNING = "test.sh", "test_final_state.py", "test_initial_state.py"


@attrs.frozen(kw_only=True)
class Resources:
    """The resources that a task requests; None means that the task does not say.

    Attributes:
        cpus: number of cores.
        memory_bytes: memory in bytes.
        disk_bytes: maximum bytes that may be written.
        gpus: number of GPUs.
        internet: whether the task has access to the internet.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    gpus: int = 0
    internet: bool | None = None


@attrs.frozen(kw_only=True)
class Task:
    """A terminal task.

    Attributes:
        id: name of its directory, or the name in its row.
        instruction: the user message for the agent.
        image: reference of a ready image, or "".
        recipe: the Containerfile or definition file of its image; None if ``image`` is set.
        context: the directory from which the recipe copies files; None if ``image`` is set.
        tests: directory of its tests: ``test.sh``, or ``test_final_state.py`` for pytest.
        solution: directory of the known solution with ``solve.sh``, or None.
        workdir: working directory of the agent and the tests.
        agent_timeout_s: time limit of the agent, or None.
        verifier_timeout_s: timeout of the tests.
        resources: the requested resources.
        env: environment variables of every command; ``${NAME}`` and ``${NAME:-default}`` take values from the host.
        verifier_env: more environment variables of the tests.
        solution_env: more environment variables of the known solution.
        verify: ``same``, ``fresh``, or "" if the task does not say.
        metadata: the table ``metadata`` of the task.
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
        """Whether the tests are a pytest file, and not a script that writes a reward."""
        return not (self.tests / TEST_SCRIPT).is_file()
