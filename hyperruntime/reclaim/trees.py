"""Take back directories that containers wrote in, by this process or in the containers' user namespace.

No program of an image runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hyperruntime.errors import ReclaimError
from hyperruntime.host.process import run_process
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.logs import get_logger
from hyperruntime.reclaim import walk

log = get_logger(__name__)

_REMOVE_S = 60.0
_START_S = 10.0  # what an engine may take to enter its user namespace


def reclaim_trees(paths: Sequence[Path], reclaim_args: Sequence[str], timeout_s: float) -> None:
    """Make trees this user's own, readable, and free of special bits and file capabilities.

    Args:
        paths: directories whose parents are this user's, and out of reach of containers.
        reclaim_args: of :class:`~hyperruntime.driver.EngineInfo`; used where this user's own rights are too few.
        timeout_s: how long it may take.

    Raises:
        ReclaimError: something in them cannot be changed.
        TimeoutError: it took longer.
    """
    until = time.monotonic() + timeout_s
    for path in paths:
        try:
            walk.reclaim_tree(str(path), until)
        except FileNotFoundError:
            continue  # it was never made
        except PermissionError as error:
            if not reclaim_args:
                raise ReclaimError(f"{str(path)!r} holds what this user may not change: {error}") from error
            _reclaim_behind(reclaim_args, path, until)
        except TimeoutError:
            raise
        except OSError as error:
            raise ReclaimError(f"{str(path)!r} cannot be taken back: {error}") from error


def remove_reclaimed(path: Path, reclaim_args: Sequence[str]) -> None:
    """Remove a directory that containers wrote in; one that cannot be removed is logged and stays.

    Args:
        path: the directory. reclaim_args: as of :func:`reclaim_trees`.
    """
    remove_tree(path)
    if not path.exists():
        return
    try:
        reclaim_trees([path], reclaim_args, _REMOVE_S)
    except (ReclaimError, TimeoutError) as error:
        log.warning("directory not removed", path=str(path), reason=str(error))
    remove_tree(path)


def _reclaim_behind(reclaim_args: Sequence[str], path: Path, until: float) -> None:
    """Run the walk as a program with the rights that a driver names."""
    left = max(until - time.monotonic(), 0.0)
    args = [*reclaim_args, sys.executable, "-I", "-S", walk.__file__, str(left), str(path)]
    try:
        result = run_process(args, cwd="/", timeout_s=left + _START_S)
    except TimeoutError:
        raise
    except OSError as error:
        raise ReclaimError(f"`{args[0]}` cannot be started: {error}; see `hyperrun doctor`") from error
    if result.exit_code == 0:
        return
    if result.error_text.startswith(TimeoutError.__name__):
        raise TimeoutError(result.error_text)
    raise ReclaimError(f"{str(path)!r} cannot be taken back: {result.error_text}; see `hyperrun doctor`")
