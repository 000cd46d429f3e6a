"""Probe what Charliecloud can do for this user; see :mod:`hyperruntime.layers.plain_probe`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hyperruntime.driver import Launch
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID, TrialResult, Trials, make_userland
from hyperruntime.host.seccomp import write_filter
from hyperruntime.layers.images import ImageSource
from hyperruntime.layers.namespace import trial_args
from hyperruntime.layers.owners import has_all_ids
from hyperruntime.layers.plain_probe import PlainProber
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_charliecloud.args import ENV, NAME, make_job


def run_trial(
    trials: Trials, place: str, script: bytes, pids: int | None, _users: bool
) -> TrialResult:
    """Return the result of a script in a trial container of this machine's programs."""
    files = tempfile.mkdtemp(dir=place)
    root = Path(files, "root")
    root.mkdir()
    launch = Launch(
        spec=ContainerSpec(
            image="trial",
            mounts=tuple(Mount(source=path, target=path) for path in make_userland(root)),
            limits=Limits(pids=pids),
        ),
        name="hyperruntime-trial",
        labels={},
        exchange=Mount(source="/usr", target="/mnt"),
        private_dir=files,
    )
    job = make_job(launch, ImageSource(files=str(root)), files, None, write_filter(files))
    ids = ALL_IDS if has_all_ids() else ONE_ID
    return trials.run(trial_args(job, ids, f"{files}/job"), script)


PROBER = PlainProber(NAME, "ch-run", ENV, run_trial, has_users=False)
cached_probe = PROBER.cached
findings = PROBER.findings
