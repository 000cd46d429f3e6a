"""The table of a cluster: what it allows, and what the batch systems are asked for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import attrs
import pytest

from hyperruntime.cluster.config import ClusterConfig, read_config
from hyperruntime.cluster.launchers.launcher import JobRefusedError
from hyperruntime.cluster.launchers.parsl import ParslLauncher, parsl_launcher
from hyperruntime.cluster.node_jobs import NodeJobs, job_script
from hyperruntime.errors import ClusterError, HyperRuntimeError

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


def launcher(folder: Path, config: ClusterConfig) -> ParslLauncher:
    made = parsl_launcher(config, folder)
    assert isinstance(made, ParslLauncher)
    return made


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_table_becomes_a_job_script_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'cp "$1" {tmp_path}/job\nenv >{tmp_path}/env\necho "Submitted batch job 7"'
    program(tmp_path, "sbatch", text, monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-head")
    monkeypatch.setenv("OUR_KEY", "another-key-of-the-head")
    config = attrs.evolve(read_config(written(tmp_path, FULL)), withhold=("OUR_KEY",))
    script = job_script(config, tmp_path, "node-1")
    assert launcher(tmp_path, config).start(script, "node-1", excluded=("n9", "n8")) == "7"
    text = (tmp_path / "job").read_text()
    for line in (
        "--partition=short",
        "--account=ours",
        "--constraint=fast",
        "--gpus-per-node=2",
        "--mem=32g",
        "--exclude=n8,n9",
    ):
        assert line in text
    assert "--time=150" in text
    assert "--no-requeue" in text
    assert "--cpus-per-task=8" in text
    assert "--exclusive" not in text
    assert text.index("module load apptainer") < text.index("node_job")
    # sbatch(1): jobs get the environment of sbatch
    assert "PATH=" in (job := (tmp_path / "env").read_text())
    assert "key-of-the-head" not in job + text


@pytest.mark.parametrize("provider", ["slurm", "pbs", "lsf"])
@pytest.mark.parametrize(("walltime", "asked"), [("2-01:00:30", "49:01:00"), ("01:30", "01:30:00")])
def test_every_form_of_a_walltime_is_asked_for_in_whole_minutes(
    provider: str, walltime: str, asked: str, tmp_path: Path
) -> None:
    """Parsl reads ``HH:MM:SS`` only, and ignores the seconds."""
    made = launcher(tmp_path, ClusterConfig(provider=provider, walltime=walltime))
    assert made._provider.walltime == asked


def test_lsf_reads_the_script_from_the_input_of_bsub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IBM Spectrum LSF, bsub: lines with #BSUB count in a script from standard input; by default -n
    is 1.
    """
    text = f'cat >{tmp_path}/job\necho "Job <7> is submitted to queue <normal>."'
    program(tmp_path, "bsub", text, monkeypatch)
    made = launcher(tmp_path, ClusterConfig(provider="lsf"))
    assert made.start("serve", "node-1", excluded=()) == "7"
    lines = (tmp_path / "job").read_text().splitlines()
    assert {"#BSUB -n 1", "#BSUB -W 60"} <= set(lines)
    assert not any("-nnodes" in line for line in lines)


@pytest.mark.parametrize(
    ("said", "is_final"),
    [
        ("sbatch: error: invalid partition specified: long", True),
        ("sbatch: error: Memory specification can not be satisfied", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv", False),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit; job submit limit", False),
    ],
)
def test_what_the_batch_system_says_to_a_job_is_told_and_some_is_tried_again(
    said: str, is_final: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sbatch", f'echo "{said}" >&2; exit 1', monkeypatch)
    with pytest.raises(ClusterError) as caught:
        launcher(tmp_path, ClusterConfig(provider="slurm")).start("x", "node-1", excluded=())
    assert said in str(caught.value)
    assert isinstance(caught.value, JobRefusedError) == is_final


@pytest.mark.parametrize("provider", ["pbs", "lsf"])
def test_pbs_and_lsf_are_asked_for_the_same(provider: str, tmp_path: Path) -> None:
    """By arguments only: neither runs on the machines of the tests."""
    config = attrs.evolve(read_config(written(tmp_path, FULL)), provider=provider)
    made = launcher(tmp_path, config)._provider
    assert (made.queue, made.max_blocks, made.walltime) == ("short", 4, "02:30:00")
    assert (made.project if provider == "lsf" else made.account) == "ours"
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
        ("[cluster]\nruntime = 'aptainer'", "did you mean 'apptainer'"),
    ],
)
def test_an_invalid_table_is_refused_in_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(HyperRuntimeError, match=words) as caught:
        read_config(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_runtime_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[cluster]\nruntime = 'podman'")
    assert [read_config(path, given).runtime for given in (None, "", "apptainer")] == [
        "podman",
        "podman",
        "apptainer",
    ]


async def started(config: ClusterConfig, folder: Path) -> NodeJobs:
    jobs = NodeJobs(config, folder, folder)
    try:
        await jobs.start()
    finally:
        await jobs.stop()
    return jobs


@pytest.mark.parametrize("name", ["with space", "a'quote", "$HOME", "a;b", "new\nline"])
def test_a_directory_that_job_scripts_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ClusterError, match="cannot be named in the scripts of jobs; put the run in a path without"
    ):
        asyncio.run(started(ClusterConfig(), tmp_path / name))


def test_a_missing_file_and_a_config_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be read as TOML: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(
        ClusterError, match="parsl='nothing:here' does not return a config: ModuleNotFoundError"
    ):
        asyncio.run(started(ClusterConfig(parsl="nothing:here"), tmp_path))


OWN = """
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import SlurmProvider


def provider():
    return SlurmProvider(walltime="00:04:00")


def config():
    return Config([HighThroughputExecutor(address="127.0.0.1", provider=provider())])
"""


@pytest.mark.parametrize("name", ["config", "provider"])
def test_nodes_of_an_own_config_are_drained_before_the_walltime_of_its_provider(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_site.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = f"own_site:{name}"
    with pytest.raises(ClusterError, match=r"in parsl='own_site:.*240 s, leaves no time for work"):
        asyncio.run(started(ClusterConfig(parsl=own), tmp_path))
    jobs = asyncio.run(started(ClusterConfig(parsl=own, drain_s=60.0), tmp_path))
    assert jobs.walltime_s == 240.0


def test_what_a_batch_system_has_no_word_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cores_per_node cannot be asked for: gridengine has no"):
        launcher(tmp_path, ClusterConfig(provider="gridengine", cores_per_node=4))
