"""An exercise and the interface of its hidden tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from hyperruntime.domain import Trial, TrialResult


class Tests(Protocol):
    """The hidden tests of an exercise."""

    def trial(self, files: Mapping[str, str]) -> Trial:
        """Return the trial that tests the files of an answer."""
        ...

    def count(self, result: TrialResult) -> tuple[int, int, str]:
        """Return the number of passed tests, the number of all tests, and one sentence that reveals no test."""
        ...


@attrs.frozen(kw_only=True)
class Exercise:
    """One exercise.

    Attributes:
        language: the programming language.
        statement: the statement of the exercise, as Markdown.
        files: the stubs' texts by relative path; an answer may hold only these files.
        tests: the hidden tests.
    """

    language: str
    statement: str
    files: Mapping[str, str]
    tests: Tests

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the agent's task."""
        return {"language": self.language, "statement": self.statement, "files": dict(self.files)}
