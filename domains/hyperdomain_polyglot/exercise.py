"""An exercise: what the agent sees, and the tests that it does not; values and a seam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from hyperruntime.domain import Trial, TrialResult


class Tests(Protocol):
    """The hidden tests of an exercise."""

    def trial(self, files: Mapping[str, str]) -> Trial:
        """Return what is to be run on an answer."""
        ...

    def count(self, result: TrialResult) -> tuple[int, int, str]:
        """Return how many tests passed, of how many, and one sentence that gives no test away."""
        ...


@attrs.frozen(kw_only=True)
class Exercise:
    """One exercise.

    Attributes:
        language: of the program.
        statement: what is asked, as Markdown.
        files: the stubs by relative path; an answer may hold these files and no others.
        tests: what decides.
    """

    language: str
    statement: str
    files: Mapping[str, str]
    tests: Tests

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What an agent is told."""
        return {"language": self.language, "statement": self.statement, "files": dict(self.files)}
