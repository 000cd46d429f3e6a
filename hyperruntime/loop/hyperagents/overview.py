"""The files at the top of the evaluations folder, where agents of this layout look for an overview
of the run.

``archive.jsonl`` lists the finished generations. ``generate_loop.log`` has the options of each
start. ``progress_info_<domain>_train_<source>.txt`` has the progress on ``train``. No file has a
key, a path of the host, or a figure of another split.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperruntime.domain import DomainBase
from hyperruntime.loop.generation.meta_patches import meta_patch_paths
from hyperruntime.loop.generation.series import every_series, progress_info, whose_scores
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.archive_file import ArchiveFile
from hyperruntime.loop.run_files.contract import AGENT_ARCHIVE
from hyperruntime.loop.run_files.layout import ARCHIVE_FILE, FIRST_SPLIT, RUN_LOG, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.storage.atomic import storage_errors, write_atomic
from hyperruntime.storage.run_files import open_to_append

_SHOWN = (
    "run_id", "max_generation", "eval_samples", "eval_workers", "parent_selection", "reset_task_agent",
    "reset_meta_agent", "run_baseline", "optimize_option", "eval_test", "skip_staged_eval", "edit_select_parent",
)  # fmt: skip


class RunOverview:
    """The overview of a run on disk, in the directory that meta agents see."""

    def __init__(
        self, options: GenerateOptions, layout: Layout, domains: Sequence[DomainBase]
    ) -> None:
        """Append the options of this start to the log.

        Args:
            options: options of the run.
            layout: paths of the run.
            domains: domains of the run.

        Raises:
            StorageError: the log cannot be written.
        """
        self._folder = layout.view
        self._whose = whose_scores(options.optimize_option)
        self._archive_file = ArchiveFile(self._folder / ARCHIVE_FILE)
        self._repaired = False
        path = self._folder / RUN_LOG
        with storage_errors(path), open_to_append(path) as file:
            file.write(f"{shown_arguments(options, domains)}\n".encode(errors="replace"))

    def refresh(self, archive: Archive) -> None:
        """Add new generations of ``archive``; in a long run only at the intervals of
        :class:`ArchiveFile`.

        Raises:
            StorageError: a file cannot be written.
        """
        records = tuple(archive)
        ids = [record.genid for record in records]
        if not self._repaired:
            self._archive_file.repair(ids)  # after a kill
        elif not self._archive_file.add(ids):
            return
        self._repaired = True
        for series in every_series(records, self._whose, only=FIRST_SPLIT):
            write_atomic(
                self._folder / f"progress_info_{series.name}.txt", progress_info(series).encode()
            )


def shown_arguments(options: GenerateOptions, domains: Sequence[DomainBase]) -> str:
    """Return the options that agents may see, in the form of HyperAgents' log.

    Args:
        options: options of the run.
        domains: domains of the run.
    """
    args = {
        "domains": [domain.name for domain in domains],
        **{name: getattr(options, name) for name in _SHOWN},
        "meta_patch_files": meta_patch_paths(options),
        "agent_archive_path": options.agent_archive_path and AGENT_ARCHIVE,
    }
    return "Args: " + ", ".join(f"{name}={value}" for name, value in args.items())
