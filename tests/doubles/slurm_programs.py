"""Programs that say what squeue(1) and scontrol(1) of Slurm 22.05 say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SQUEUE = """#!/bin/sh
for word; do case $word in --jobs=7) echo RUNNING;; --jobs=8) echo CANCELLED;;
--jobs=9) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;
--jobs=10) echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1;; esac; done
"""
SCONTROL = "#!/bin/sh\necho 'ClusterName             = ours'\n"


def install_slurm_programs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them on the PATH: of the cluster "ours", job 7 runs, 8 was cancelled, 9 is forgotten, 10
    gets no answer.
    """
    for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
