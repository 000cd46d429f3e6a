"""``study.json``: the list of the runs of a study. Each is an ordinary run directory below it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.json_values import is_integer
from hyperruntime.loop.run_files.layout import PREFIX
from hyperruntime.loop.run_files.record import SCHEMA
from hyperruntime.runs.options import RUN_ID
from hyperruntime.storage.atomic import json_document, write_atomic
from hyperruntime.storage.run_files import read_run_json

STUDY_FILE = "study.json"
STUDY_PREFIX = "study_"


@attrs.frozen(kw_only=True)
class Study:
    """Several runs with the same options and other seeds.

    Attributes:
        root: the study directory.
        names: of the run directories in it, in order.
        parallel: generations at once, of all runs together.
    """

    root: Path
    names: tuple[str, ...]
    parallel: int = 1

    @property
    def runs(self) -> tuple[Path, ...]:
        """The run directories."""
        return tuple(self.root / name for name in self.names)

    @property
    def runs_at_once(self) -> int:
        """How many runs are made at once: as many as possible, because a run that makes one
        generation at a time has a lineage that its seed fixes.
        """
        return min(self.parallel, len(self.names))

    @property
    def share(self) -> int:
        """Generations at once of each run."""
        return max(1, self.parallel // len(self.names))


def is_study(path: Path) -> bool:
    """Return whether a directory is that of a study."""
    return (path / STUDY_FILE).is_file()


def write_study(study: Study) -> None:
    """Write the file of a study.

    Raises:
        StorageError: it cannot be written.
    """
    value = {"schema": SCHEMA, "parallel": study.parallel, "runs": list(study.names)}
    write_atomic(study.root / STUDY_FILE, json_document(value))


def read_study(root: Path) -> Study:
    """Return the study in a directory.

    Raises:
        ArchiveError: its file does not exist or is not valid.
    """
    value = read_run_json(root / STUDY_FILE, below=root) or {}
    names = value.get("runs", [])
    parallel = value.get("parallel", 1)
    if not _are_names(names) or not is_integer(parallel) or parallel < 1:
        raise ArchiveError(
            f"{str(root / STUDY_FILE)!r} is not a valid file of a study; its runs are the "
            f"{PREFIX}... directories beside it, and each can be resumed alone"
        )
    return Study(root=root, names=tuple(names), parallel=parallel)


def _are_names(value: object) -> bool:
    """Return whether a JSON value lists run directories, none of them twice or elsewhere."""
    if not isinstance(value, list) or not value:
        return False
    texts: Sequence[str] = [one for one in value if isinstance(one, str)]
    named = all(
        one.startswith(PREFIX) and RUN_ID.fullmatch(one.removeprefix(PREFIX)) for one in texts
    )
    return named and len(set(texts)) == len(value)
