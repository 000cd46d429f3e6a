"""Choose the parent of a generation with the agents' own program, which evolves too.

The program of the newest generation without a known failure runs in its own container and sees the
view of all finished generations. If it fails, it is not used again and the next newest is tried.
After ten failures, if none is left, or after an infrastructure failure, the run's own rule chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from hyperruntime.errors import ContainerLostError, HyperRuntimeError
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.generation.generation_view import GenerationView, add_figures
from hyperruntime.loop.generation.publish import mark_generation
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationMark, GenerationRecord
from hyperruntime.loop.workbench.container import AgentContainer, GenerationPlan, discard
from hyperruntime.loop.workbench.failures import (
    GenerationFailedError,
    RunInterruptedError,
    last_line,
)
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory, open_private, storage_errors, write_file
from hyperruntime.units import one_line

log = get_logger(__name__)

MAX_ASKED = 10
FOLDER = "standings"
LOG = "select_next_parent.log"
_MAX_LOG_BYTES = 64 * 1024
_SEED = "/opt/hyperruntime/seed"
_SEEDED = f'PYTHONPATH="{_SEED}${{PYTHONPATH:+:$PYTHONPATH}}"; export PYTHONPATH; exec "$@"'
_SITE = """import os
import random

random.seed(os.environ["HYPERRUN_SEED"] + ":" + os.environ["HYPERRUN_GENERATION"])
"""


@attrs.frozen(kw_only=True)
class Said:
    """The output of a generation's own program.

    Attributes:
        line: the last line of its standard output.
        log: its output, up to a limit.
        failure: one sentence if it failed, else "".
    """

    line: str = ""
    log: str = ""
    failure: str = ""


@attrs.frozen(kw_only=True)
class Question:
    """A request to a generation's own program to choose a parent.

    Attributes:
        number: the generation that needs a parent.
        asked: the generation whose program is asked.
        commit: its state.
        view: directory with the view of all generations.
    """

    number: int
    asked: GenId
    commit: str
    view: str

    def ask(self, context: RunContext) -> Said:
        """Run the program in a container of its own.

        Raises:
            RunInterruptedError: the run is being interrupted.
            HyperRuntimeError: the infrastructure failed.
        """
        folder = context.layout.work / f"choice_{self.number}"
        discard(context, folder)
        write_file(make_directory(folder / "seed") / "sitecustomize.py", _SITE.encode())
        plan = GenerationPlan(genid=self.number, parent=self.asked, commit=self.commit)
        view = Mount(source=self.view, target=context.contract.evals)
        place = AgentContainer(
            context, plan, folder, view, Mount(source=str(folder / "seed"), target=_SEED)
        )
        log = _Capped()
        try:
            context.store.export(self.commit, place.repo)
            place.start()
            args = [
                "/bin/sh",
                "-c",
                _SEEDED,
                "seeded",
                *context.adapter.select_parent_args(context, self.number),
            ]
            result = place.run(
                args, "its parent selection", context.options.timeout_select_s, log, "agent"
            )
            return Said(line=last_line(result.stdout, "nothing"), log=log.text)
        except ContainerLostError as error:
            if context.containers.stopping:
                raise RunInterruptedError("the run is being interrupted") from error
            return Said(failure=str(error), log=log.text)
        except GenerationFailedError as error:
            return Said(failure=str(error), log=log.text)
        finally:
            place.close()
            discard(context, folder)


class ParentProgram:
    """Runs the agents' own program to choose parents."""

    def __init__(
        self,
        context: RunContext,
        archive: Archive,
        commit_of: Callable[[GenId], str],
        ask: Callable[[Question], Said],
    ) -> None:
        """Open the view of all generations.

        Args:
            context: context of the run.
            archive: the finished generations.
            commit_of: returns the commit of a generation's state.
            ask: asks a question, as ``Question.ask`` does, perhaps on another machine.
        """
        self._context = context
        self._archive = archive
        self._commit_of = commit_of
        self._put = ask
        self._view = GenerationView(context.layout, FOLDER, context.domains, add_figures)

    def choose(self, number: int) -> GenId | None:
        """Return the parent of generation ``number``; None if the run's own rule must choose.

        Raises:
            RunInterruptedError: the run is being interrupted.
            StorageError: a file cannot be written.
        """
        self._view.refresh(self._archive)
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
                log.warning(
                    "choice of a parent not made", generation=record.genid, reason=str(error)
                )
                break  # an infrastructure failure; the generation's program may be good
        rule = self._context.options.parent_selection
        log.warning("parent chosen by the run's own rule", generation=number, rule=rule)
        return None

    def _who_is_asked(self) -> Iterator[GenerationRecord]:
        """Yield the generations to try, newest first; the first generation is tried even after a
        failure.
        """
        asked = 0
        first = self._archive.first
        for record in reversed(list(self._archive)):
            usable = record.valid_parent and self._archive.can_select(record.genid)
            if asked < MAX_ASKED and (usable or record is first):
                asked += 1
                yield record

    def _give_up_on(self, record: GenerationRecord, number: int, why: str) -> None:
        log.warning("a generation cannot choose parents", generation=record.genid, reason=why)
        mark = GenerationMark(
            kind="no-selection", genid=record.genid, by=number, detail=one_line(why)
        )
        mark_generation(self._context, self._archive, mark)
        self._view.refresh(self._archive)

    def _ask(self, record: GenerationRecord, number: int) -> GenId:
        commit = self._commit_of(record.genid)
        view = str(self._view.folder)
        said = self._put(Question(number=number, asked=record.genid, commit=commit, view=view))
        with (
            storage_errors(self._context.layout.root),
            open_private(self._context.layout.root / LOG) as file,
        ):
            file.write(
                f"== generation {number}: generation {record.genid} is asked\n{said.log}".encode()
            )
        if said.failure:
            raise GenerationFailedError("agent", said.failure)
        return self._named(said.line)

    def _named(self, line: str) -> GenId:
        """Return the generation that a line names, if it may become a parent."""
        genid: GenId = int(line) if line.isascii() and line.isdigit() else line
        able = {candidate.genid for candidate in self._archive.candidates()}
        if genid not in able and genid != self._archive.first.genid:
            why = f"it chose {line[:100]!r}, which is not a generation that may become a parent"
            raise GenerationFailedError("agent", why)
        return genid


class _Capped:
    """Keeps output up to a size limit and discards the rest."""

    def __init__(self) -> None:
        self._kept = bytearray()

    @property
    def text(self) -> str:
        """The output as text."""
        return self._kept.decode(errors="replace")

    def __call__(self, chunk: bytes) -> None:
        self._kept += chunk[: _MAX_LOG_BYTES - len(self._kept)]
