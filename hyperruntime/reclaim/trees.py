"""Reclaim directories that containers wrote in, in this process or in the containers' user
namespace.

No program of an image runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hyperruntime.errors import ReclaimError
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.process import python_args, run_process
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.logs import get_logger
from hyperruntime.reclaim import walk

log = get_logger(__name__)


def reclaim_trees(paths: Sequence[Path], reclaim_args: Sequence[str], timeout_s: float) -> None:
    """Give trees to this user, make them readable, and remove special mode bits and file
    capabilities.

    Args:
        paths: directories whose parents belong to this user and cannot be reached by containers;
            missing ones are skipped.
        reclaim_args: command prefix from :class:`~hyperruntime.driver.EngineInfo`; used if this
            user lacks permission.
        timeout_s: seconds for all trees together.

    Raises:
        ReclaimError: an entry cannot be changed.
        TimeoutError: the deadline passed.
    """
    until = time.monotonic() + timeout_s
    for path in paths:
        try:
            walk.reclaim_tree(str(path), until)
        except FileNotFoundError:
            continue  # never created
        except PermissionError as error:
            if not reclaim_args:
                raise ReclaimError(
                    f"{str(path)!r} holds an entry that this user may not change: {error}"
                ) from error
            _reclaim_behind(reclaim_args, path, until)
        except TimeoutError:
            raise
        except OSError as error:
            raise ReclaimError(f"{str(path)!r} cannot be reclaimed: {error}") from error


def remove_reclaimed(path: Path, reclaim_args: Sequence[str]) -> None:
    """Remove a directory that containers wrote in; log a directory that cannot be removed.

    Args:
        path: the directory.
        reclaim_args: as for :func:`reclaim_trees`.
    """
    remove_tree(path)
    if not path.exists():
        return
    try:
        reclaim_trees([path], reclaim_args, limit_s("", "reclaim"))
    except (ReclaimError, TimeoutError) as error:
        log.warning("directory not removed", path=str(path), reason=str(error))
    remove_tree(path)


def _reclaim_behind(reclaim_args: Sequence[str], path: Path, until: float) -> None:
    """Run :mod:`walk` as a program, with the rights that the driver's command prefix gives."""
    left = max(until - time.monotonic(), 0.0)
    args = [*reclaim_args, *python_args("-I", "-S", walk.__file__), str(left), str(path)]
    begin_s = limit_s("", "unshare")
    try:
        result = run_process(args, cwd="/", timeout_s=left + begin_s)
    except TimeoutError as error:  # the program itself keeps its deadline
        why = (
            f"`{reclaim_args[0]}` did not begin within {begin_s:.0f} s; the engine or the "
            "machine is overloaded"
        )
        raise ReclaimError(f"{str(path)!r} cannot be reclaimed: {why}") from error
    except OSError as error:
        raise ReclaimError(
            f"`{args[0]}` cannot be started: {error}; see `hyperrun doctor`"
        ) from error
    if result.exit_code == 0:
        return
    if result.error_text.startswith(TimeoutError.__name__):
        raise TimeoutError(result.error_text)
    raise ReclaimError(
        f"{str(path)!r} cannot be reclaimed: {result.error_text}; see `hyperrun doctor`"
    )
