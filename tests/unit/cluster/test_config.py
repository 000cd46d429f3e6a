"""The table of a cluster: what it allows, and what the batch systems are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from hyperruntime.cluster.config import ClusterConfig, read_config
from hyperruntime.cluster.pilots import Pilots, launch_command
from hyperruntime.errors import ClusterError, SpecError
from hyperruntime.host.process import run_process

FULL = """
[cluster]
provider = "slurm"
partition = "short"
account = "ours"
walltime = "02:30:00"
max_nodes = 4
cores_per_node = 8
memory_gb_per_node = 32
gpus_per_node = 2
options = ["#SBATCH --constraint=fast"]
setup = ["module load apptainer"]
"""


def written(folder: Path, text: str) -> Path:
    (path := folder / "c.toml").write_text(text)
    return path


def test_a_table_becomes_a_job_script_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\ncp "$1" {tmp_path}/job\nenv >{tmp_path}/env\necho "Submitted batch job 7"\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-head")
    monkeypatch.setenv("OUR_KEY", "another-key-of-the-head")
    pilots = Pilots(
        attrs.evolve(read_config(written(tmp_path, FULL)), withhold=("OUR_KEY",)), tmp_path
    )
    pilots._withhold(provider := pilots._provider())
    provider.script_dir = str(tmp_path)
    assert provider.submit("serve", 1) == "7"
    text = (tmp_path / "job").read_text()
    for line in (
        "--partition=short",
        "--account=ours",
        "--constraint=fast",
        "--gpus-per-node=2",
        "--mem=32g",
    ):
        assert line in text
    assert "--time=150" in text
    assert "--no-requeue" in text
    assert "--cpus-per-task=8" in text
    assert "--exclusive" not in text
    assert text.index("module load apptainer") < text.index("serve")
    # sbatch(1): jobs get the environment of sbatch
    assert "PATH=" in (job := (tmp_path / "env").read_text())
    assert "key-of-the-head" not in job + text


@pytest.mark.parametrize("provider", ["slurm", "pbs", "lsf"])
@pytest.mark.parametrize(("walltime", "asked"), [("2-01:00:30", "49:01:00"), ("01:30", "01:30:00")])
def test_every_form_of_a_walltime_is_asked_for_in_whole_minutes(
    provider: str, walltime: str, asked: str, tmp_path: Path
) -> None:
    """Parsl reads ``HH:MM:SS`` only, and ignores the seconds."""
    made = Pilots(ClusterConfig(provider=provider, walltime=walltime), tmp_path)._provider()
    assert made.walltime == asked


def test_lsf_reads_the_script_from_the_input_of_bsub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IBM Spectrum LSF, bsub: lines with #BSUB count in a script from standard input; by default -n
    is 1.
    """
    (tmp_path / "bsub").write_text(
        f'#!/bin/sh\ncat >{tmp_path}/job\necho "Job <7> is submitted to queue <normal>."\n'
    )
    (tmp_path / "bsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    provider = Pilots(ClusterConfig(provider="lsf"), tmp_path)._provider()
    provider.script_dir = str(tmp_path)
    assert provider.submit("serve", 1) == "7"
    lines = (tmp_path / "job").read_text().splitlines()
    assert {"#BSUB -n 1", "#BSUB -W 60"} <= set(lines)
    assert not any("-nnodes" in line for line in lines)


def test_a_job_begins_no_other_node_server_when_its_time_is_nearly_over() -> None:
    """The time that the set-up lines took counts."""
    words = launch_command(
        "process_worker_pool.py --drain_period={drain_period} -p {other}", 9000 - 600
    )
    program, period = words.removesuffix(" -p {other}").split(" --drain_period=")
    assert program.endswith("process_worker_pool")
    begun = f"HYPERRUNTIME_JOB_BEGAN=$(($(date +%s) - 1000)); echo {period}"
    said = run_process(["sh", "-c", begun], timeout_s=30).stdout.decode().strip()
    assert abs(int(said) - (9000 - 600 - 60 - 1000)) <= 1, (
        "a minute before the head wants another node"
    )


@pytest.mark.parametrize("provider", ["pbs", "lsf"])
def test_pbs_and_lsf_are_asked_for_the_same(provider: str, tmp_path: Path) -> None:
    """By arguments only: neither runs on the machines of the tests."""
    config = attrs.evolve(read_config(written(tmp_path, FULL)), provider=provider)
    made = Pilots(config, tmp_path)._provider()
    assert (made.queue, made.max_blocks, made.walltime) == ("short", 4, "02:30:00")
    assert (made.project if provider == "lsf" else made.account) == "ours"
    assert "module load apptainer" in made.worker_init
    if provider == "pbs":
        assert (made.cpus_per_node, made.select_options) == (8, "mem=32gb:ngpus=2")
    else:
        lines = made.scheduler_options.splitlines()
        wanted = ["-n 8", '-R "span[ptile=8]"', '-R "rusage[mem=32GB]"', '-gpu "num=2"', "-q short"]
        assert set(lines) >= {f"#BSUB {line}" for line in wanted}, lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"has no table \[cluster\]"),
        ("[cluster", "cannot be read as TOML"),
        ("cluster = 1", r"has no table \[cluster\]"),
        (
            "[cluster]\nprovidr = 'slurm'",
            "cluster.providr=.*a known key; did you mean 'provider'\\?",
        ),
        ("[cluster]\nprovider = 'slurn'", "did you mean 'slurm'"),
        (
            "[cluster]\nwalltime = '00:05:00'",
            "drain_s=300.0 is not allowed.*less than the walltime, which is 00:05:00",
        ),
        ("[cluster]\nwalltime = 60", "a time such as '01:30:00'"),
        ("[cluster]\nmax_nodes = 0", "max_nodes=0 is not allowed"),
        ("[cluster]\nmin_nodes = 2", "at most max_nodes, which is 1"),
        ("[cluster]\nsetup = 'module load x'", "a list of texts"),
        ('[cluster]\npartition = "a\\nb"', "a text of one line"),
        ("[cluster]\nparsl = 'mine'", "a name such as 'mysite:make_config'"),
        ("[cluster]\nidle_s = true", "idle_s=True is not allowed"),
    ],
)
def test_an_invalid_table_is_refused_in_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((ClusterError, SpecError), match=words) as caught:
        read_config(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_runtime_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[cluster]\nruntime = 'podman'")
    assert [read_config(path, given).runtime for given in (None, "", "apptainer")] == [
        "podman",
        "podman",
        "apptainer",
    ]


@pytest.mark.parametrize("name", ["with space", "a'quote", "$HOME", "a;b", "new\nline"])
def test_a_directory_that_job_scripts_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ClusterError, match="cannot be named in the scripts of jobs; put the run in a path without"
    ):
        Pilots(ClusterConfig(), tmp_path / name).start()


def test_a_missing_file_and_a_config_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be read as TOML: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(
        ClusterError, match="parsl='nothing:here' does not return a config: ModuleNotFoundError"
    ):
        Pilots(ClusterConfig(parsl="nothing:here"), tmp_path).start()


OWN = """
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import SlurmProvider


def config():
    return Config([HighThroughputExecutor(address="127.0.0.1", provider=SlurmProvider(walltime="00:04:00"))])
"""


def test_nodes_of_an_own_config_are_drained_before_the_walltime_of_its_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_site.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    too_short = Pilots(ClusterConfig(parsl="own_site:config"), tmp_path)
    with pytest.raises(
        ClusterError,
        match="the walltime 00:04:00 in parsl='own_site:config' leaves no time for work",
    ):
        too_short.start()
    pilots = Pilots(ClusterConfig(parsl="own_site:config", drain_s=60.0), tmp_path)
    monkeypatch.setattr("parsl.dataflow.dflow.DataFlowKernel", lambda config: None)
    pilots.start()
    assert pilots.walltime_s == 240.0
