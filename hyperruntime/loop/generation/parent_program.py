"""Choose the parent of a generation with the agents' own program, which evolves too.

The program of the newest generation without a known failure runs in its own container and sees the view of all finished
generations. If it fails, it is not used again and the next newest is tried. After ten failures, if none is left, or
after an infrastructure failure, the run's own rule chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

from hyperruntime.errors import ContainerLostError, HyperRuntimeError
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.generation_view import GenerationView, add_figures
from hyperruntime.loop.generation.publish import mark_generation
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationMark, GenerationRecord
from hyperruntime.loop.workbench.container import AgentContainer, discard
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.loop.workbench.failures import GenerationFailedError, RunInterruptedError, last_line, one_line
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory, open_private, storage_errors, write_file

log = get_logger(__name__)

MAX_ASKED = 10
FOLDER, LOG = "standings", "select_next_parent.log"
_MAX_LOG_BYTES = 64 * 1024
_SEED = "/opt/hyperruntime/seed"
_SEEDED = f'PYTHONPATH="{_SEED}${{PYTHONPATH:+:$PYTHONPATH}}"; export PYTHONPATH; exec "$@"'
_SITE = """import os
import random

random.seed(os.environ["HYPERRUN_SEED"] + ":" + os.environ["HYPERRUN_GENERATION"])
"""


class ParentProgram:
    """Runs the agents' own program to choose parents."""

    def __init__(self, context: RunContext, archive: Archive, commit_of: Callable[[GenId], str]) -> None:
        """Open the view of all generations.

        Args:
            context: context of the run.
            archive: the finished generations.
            commit_of: returns the commit of a generation's state.
        """
        self._context, self._archive, self._commit_of = context, archive, commit_of
        self._standings = GenerationView(context.layout, FOLDER, context.domains, add_figures)

    def choose(self, number: int) -> GenId | None:
        """Return the parent of generation ``number``; None if the run's own rule must choose.

        Raises:
            RunInterruptedError: the run is being interrupted.
            StorageError: a file cannot be written.
        """
        self._standings.refresh(self._archive)
        for record in self._who_is_asked():
            try:
                return self._ask(record, number)
            except GenerationFailedError as error:
                self._give_up_on(record, number, str(error))
            except RunInterruptedError:
                raise
            except HyperRuntimeError as error:
                if self._context.containers.stopping:
                    raise RunInterruptedError("the run is being interrupted") from error
                log.warning("choice of a parent not made", generation=record.genid, reason=str(error))
                break  # an infrastructure failure; the generation's program may be good
        rule = self._context.options.parent_selection
        log.warning("parent chosen by the run's own rule", generation=number, rule=rule)
        return None

    def _who_is_asked(self) -> Iterator[GenerationRecord]:
        """Yield the generations to try, newest first; the first generation is tried even after a failure."""
        asked, first = 0, self._archive.first
        for record in reversed(list(self._archive)):
            usable = record.valid_parent and self._archive.can_select(record.genid)
            if asked < MAX_ASKED and (usable or record is first):
                asked += 1
                yield record

    def _give_up_on(self, record: GenerationRecord, number: int, why: str) -> None:
        log.warning("a generation cannot choose parents", generation=record.genid, reason=why)
        mark = GenerationMark(kind="no-selection", genid=record.genid, by=number, detail=one_line(why))
        mark_generation(self._context, self._archive, mark)
        self._standings.refresh(self._archive)

    def _ask(self, record: GenerationRecord, number: int) -> GenId:
        context = self._context
        folder = context.layout.work / f"choice_{number}"
        discard(context, folder)
        write_file(make_directory(folder / "seed") / "sitecustomize.py", _SITE.encode())
        plan = GenerationPlan(genid=number, parent=record.genid, commit=self._commit_of(record.genid))
        view = Mount(source=str(self._standings.folder), target=context.contract.evals)
        place = AgentContainer(context, plan, folder, view, Mount(source=str(folder / "seed"), target=_SEED))
        try:
            context.store.export(plan.commit, place.repo)
            place.start()
            return self._answer(place, record, number)
        except ContainerLostError as error:
            if context.containers.stopping:
                raise RunInterruptedError("the run is being interrupted") from error
            raise GenerationFailedError("agent", str(error)) from error
        finally:
            place.close()
            discard(context, folder)

    def _answer(self, place: AgentContainer, record: GenerationRecord, number: int) -> GenId:
        timeout_s = self._context.options.timeout_select_s
        with storage_errors(self._context.layout.root), open_private(self._context.layout.root / LOG) as file:
            file.write(f"== generation {number}: generation {record.genid} is asked\n".encode())
            program = self._context.adapter.select_parent_args(self._context, number)
            args = ["/bin/sh", "-c", _SEEDED, "seeded", *program]
            result = place.run(args, "its parent selection", timeout_s, _Capped(file), "agent")
        return self._named(last_line(result.stdout, "nothing"))

    def _named(self, line: str) -> GenId:
        """Return the generation that a line names, if it may become a parent."""
        genid: GenId = int(line) if line.isascii() and line.isdigit() else line
        able = {candidate.genid for candidate in self._archive.candidates()}
        if genid not in able and genid != self._archive.first.genid:
            why = f"it chose {line[:100]!r}, which is not a generation that may become a parent"
            raise GenerationFailedError("agent", why)
        return genid


class _Capped:
    """Writes to a file up to a size limit and discards the rest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, _MAX_LOG_BYTES

    def __call__(self, chunk: bytes) -> None:
        self._file.write(chunk[: self._left])
        self._left -= min(self._left, len(chunk))
