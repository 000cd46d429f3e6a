"""The interface of selection rules, which choose the parent of a generation.

A rule is an object of a class that an entry point of the group ``hyperruntime.selection`` names, or
``PATH/FILE.py:CLASS``. The class is called without arguments, or with ``ARGUMENT`` if the user
writes ``NAME:ARGUMENT``. Guide: docs/writing-a-selection-rule.md. Design: docs/design/loop.md.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from hyperruntime.errors import DriverLoadError, HyperRuntimeError, RunError
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, Layout
from hyperruntime.loop.run_files.parent_rules import Candidate, GenId
from hyperruntime.storage.run_files import open_run_file
from hyperruntime.units import MIB

_MOST_DIFF_BYTES = MIB


@attrs.frozen(kw_only=True)
class Selection:
    """A run at the moment when the parent of a generation is chosen: all that a rule may use.

    Attributes:
        generation: number of the new generation.
        candidates: the generations that may become its parent, at least one, in archive order.
        parents: the parent of each archived generation, failed ones too; None for the first one.
        seed: seed of the run.
        diff: returns the diff between a generation and its parent, at most its first MiB; "" if
            there is none.
        random: a new source of random numbers for each choice; it follows from the seed and the
            number of the generation.
    """

    generation: int
    candidates: tuple[Candidate, ...]
    parents: Mapping[GenId, GenId | None] = attrs.field(hash=False)
    seed: int
    diff: Callable[[GenId], str]
    random: random.Random = attrs.field(
        init=False,
        eq=False,
        default=attrs.Factory(
            lambda run: random.Random(f"{run.seed}:{run.generation}"),  # noqa: S311 - reproducible on purpose
            takes_self=True,
        ),
    )

    def lineage(self, genid: GenId) -> tuple[GenId, ...]:
        """Return the ancestors of a generation and the generation itself, oldest first."""
        chain: list[GenId] = []
        at: GenId | None = genid
        while at is not None:
            chain.append(at)
            at = self.parents[at]
        return tuple(chain[::-1])


class SelectionRule(Protocol):
    """A rule for choosing parents; ``interface_version`` of its class is the version of this
    interface for which it was written (docs/versions.md).

    It is called once for each generation, in one thread. A choice may depend on nothing but the
    selection and the rule's argument, so that a resumed run makes the same choices.
    """

    def __call__(self, run: Selection) -> GenId:
        """Return the id of one of the candidates.

        Raises:
            SpecError: the rule cannot work with this run; the message says why.
        """
        ...


def read_diff(layout: Layout, genid: GenId) -> str:
    """Return the diff between a generation and its parent, at most its first MiB; "" if it cannot
    be read.
    """
    path = layout.generation(genid) / AGENT_OUTPUT / PATCH
    try:
        with os.fdopen(open_run_file(path, below=layout.root), "rb") as file:
            return file.read(_MOST_DIFF_BYTES).decode(errors="replace")
    except OSError:
        return ""


def choose_parent(name: str, rule: SelectionRule, run: Selection) -> GenId:
    """Return the parent that a rule chooses.

    Args:
        name: the rule as the user named it, for messages.
        rule: the rule.
        run: what it sees.

    Raises:
        RunError: the rule failed, or chose something else than a candidate.
    """
    advice = "resume the run with another --parent-selection"
    try:
        chosen: Any = rule(run)
    except HyperRuntimeError as error:
        raise RunError(f"--parent-selection {name}: {error}; {advice}") from error
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DriverLoadError(f"the selection rule {name!r} failed: {what}; {advice}") from error
    if not any(type(chosen) is type(one.genid) and chosen == one.genid for one in run.candidates):
        raise RunError(
            f"the selection rule {name!r} chose {str(chosen)[:100]!r}, which is not a generation "
            f"that may become a parent; {advice}"
        )
    return chosen  # type: ignore[no-any-return]
