"""An exercise and its hidden tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hyperdomain_polyglot.cases import Cases
from hyperdomain_polyglot.suite import Suite


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
    tests: Cases | Suite

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the agent's task."""
        return {"language": self.language, "statement": self.statement, "files": dict(self.files)}
