"""Probe what bubblewrap can do for this user; see :mod:`hyperruntime.layers.plain_probe`."""

from __future__ import annotations

from hyperruntime.driver import Launch
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID, TrialResult, Trials
from hyperruntime.host.seccomp import write_filter
from hyperruntime.layers.namespace import trial_args
from hyperruntime.layers.plain_probe import PlainProber
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_bubblewrap.args import ENV, IMAGE, NAME, make_job


def run_trial(
    trials: Trials, place: str, script: bytes, pids: int | None, users: bool
) -> TrialResult:
    """Return the result of a script in a trial container of this machine's programs; ``place``
    takes its files.
    """
    usr = Mount(source="/usr", target="/mnt")
    launch = Launch(
        spec=ContainerSpec(image=IMAGE, limits=Limits(pids=pids)),
        name="hyperruntime-trial",
        labels={},
        exchange=usr,
        private_dir=place,
    )
    job = make_job(launch, None, place, filter_path=write_filter(place), layers=None, users=users)
    ids = ALL_IDS if users else ONE_ID
    return trials.run(trial_args(job, ids, f"{place}/job"), script)


PROBER = PlainProber(NAME, "bwrap", ENV, run_trial)
cached_probe = PROBER.cached
findings = PROBER.findings
probe = PROBER.probe
