"""mini-swe-agent's own agent in our environment, beside its environment for Docker where that can
run.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager

import hyperruntime as hr
from hyperruntime_mini_swe_agent import Environment, EnvironmentConfig
from tests.conftest import podman_command
from tests.integrations.mini_swe_agent.example import make_agent

pytestmark = pytest.mark.engine

CLASS = "hyperruntime_mini_swe_agent.Environment"


@pytest.fixture
def environment(base_image: str, runtime_name: str) -> Any:
    return get_environment(
        {"environment_class": CLASS, "image": base_image, "runtime": runtime_name, "cwd": "/tmp"}
    )


def test_an_agent_of_the_framework_solves_a_task(environment: Any) -> None:
    said = [
        ("look", "echo 42 >answer; hostname"),
        ("done", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer"),
    ]
    outputs = [make_output(text, [{"command": command}]) for text, command in said]
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs),
        environment,
        system_template="You act in {{system}}.",  # of the environment's variables
        instance_template="{{task}}",
    )
    info = agent.run("write the answer")
    assert (info["exit_status"], info["submission"]) == ("Submitted", "42\n")
    assert environment.serialize()["info"]["config"]["environment_type"].startswith(
        "hyperruntime_mini_swe_agent."
    )


def test_the_example_of_the_page_runs(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch, with_memory_limit: Any
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    said = make_output("done", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; pwd"}])
    with with_memory_limit:
        assert (
            make_agent(DeterministicModel(outputs=[said])).run("finish")["submission"] == "/tmp\n"
        )


def test_outputs_are_merged_and_bounded_in_time(environment: Any) -> None:
    assert environment.execute({"command": "echo a; echo b >&2; echo c; exit 3"}) == {
        "output": "a\nb\nc\n",
        "returncode": 3,
        "exception_info": "",
    }
    late = environment.execute({"command": "echo before; sleep 100"}, timeout=1)
    assert (late["output"], late["returncode"], late["extra"]["exception_type"]) == (
        "before\n",
        -1,
        "TimeoutExpired",
    )
    assert "timed out after 1 seconds" in late["exception_info"]
    with pytest.raises(Submitted):
        environment.execute({"command": "echo; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})


def test_variables_and_directories_are_those_of_the_configuration(
    base_image: str, runtime_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_HOST", "host")
    environment = Environment(
        image=base_image,
        runtime=runtime_name,
        cwd="/usr",
        env={"MINE": "a b"},
        forward_env=["OF_THE_HOST"],
        container={"network": "none", "limits": {"pids": 200}},
    )
    said = environment.execute({"command": 'pwd; echo "$MINE $OF_THE_HOST"'})["output"]
    assert said == "/usr\na b host\n"
    assert environment.execute({"command": "pwd"}, cwd="/etc")["output"] == "/etc\n"


def test_mounts_and_limits_may_be_objects_of_the_library(
    base_image: str, runtime_name: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "given").write_text("from the host\n")
    fields = {
        "mounts": [hr.Mount(source=str(tmp_path), target="/in")],
        "limits": hr.Limits(pids=200),
    }
    environment = Environment(
        image=base_image, runtime=runtime_name, container=fields, container_timeout="1h"
    )
    assert environment.execute({"command": "cat /in/given"})["output"] == "from the host\n"
    limits = environment.container.spec.limits
    assert (limits.pids, limits.wall_s) == (200, 3600)
    json.dumps(environment.serialize())


def test_a_submission_that_lost_bytes_is_an_error_that_the_agent_sees(environment: Any) -> None:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; head -c 11000000 /dev/zero | tr '\\0' x"
    seen = environment.execute({"command": submit})
    assert (seen["returncode"], "not submitted" in seen["exception_info"]) == (-1, True)
    assert "bytes of output dropped here" in seen["output"]


def test_keys_of_the_environment_for_docker_are_honoured_or_refused_with_what_to_use(
    base_image: str, runtime_name: str
) -> None:
    given: dict[str, Any] = {
        "image": base_image,
        "runtime": runtime_name,
        "container_timeout": "7h",
    }
    assert Environment(**given).container.spec.limits.wall_s == 7 * 3600
    of_container = {"limits": {"wall_s": 60, "pids": 100}}
    limits = Environment(**given, container=of_container).container.spec.limits
    assert (limits.wall_s, limits.pids) == (60, 100)
    assert EnvironmentConfig(image="x", container_timeout="2d").container_fields() == {
        "limits": {"wall_s": 172800}
    }
    for key, value, instead in (
        ("executable", "podman", "`runtime`"),
        ("run_args", ["--network", "none"], "`container`"),
        ("pull_timeout", 60, "no time limit"),
        ("imagee", "x", "'image'"),
        ("network", "none", "fields of the container are in `container`"),
        ("container_timeout", "soon", "number of seconds"),
    ):
        odd: dict[str, Any] = {"image": base_image, "runtime": runtime_name, key: value}
        with pytest.raises(ValueError, match=instead):
            Environment(**odd)


def test_the_runner_for_swe_bench_of_the_page_gives_each_instance_its_image(
    base_image: str, runtime_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # restored afterwards
    monkeypatch.setattr(swebench, "get_sb_environment", swebench.get_sb_environment)
    runpy.run_path(str(Path(__file__).with_name("runner.py")))
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; pwd; cat started"
    outputs = [make_output("done", [{"command": submit}])]
    config = {
        "agent": {"system_template": "You are a programmer.", "instance_template": "{{task}}"},
        "environment": {"environment_class": "docker", "cwd": "/tmp", "runtime": runtime_name},
        "model": {"model_class": "deterministic", "outputs": outputs, "model_name": "scripted"},
        "run": {"env_startup_command": "echo {{instance_id}} >/tmp/started"},
    }
    instance = {"instance_id": "one__two-3", "problem_statement": "x", "image_name": base_image}
    swebench.process_instance(instance, tmp_path, config, RunBatchProgressManager(1))
    info = json.loads((tmp_path / "one__two-3/one__two-3.traj.json").read_text())["info"]
    assert info["submission"] == "/tmp\none__two-3\n"
    environment = info["config"]["environment"]
    assert (environment["image"], environment["container"]["pull"]) == (base_image, "missing")
    assert (
        info["config"]["environment_type"] == "hyperruntime_mini_swe_agent.environment.Environment"
    )


def test_a_container_ends_with_its_environment(base_image: str, runtime_name: str) -> None:
    environment = Environment(image=base_image, runtime=runtime_name)
    container = environment.container
    del environment
    gc.collect()
    assert not container.is_alive


def test_results_are_those_of_the_frameworks_own_environment(
    environment: Any, base_image: str, runtime_name: str, runtime: hr.Runtime
) -> None:
    if runtime_name != "podman":
        pytest.skip("theirs needs a program with the arguments of Docker, and the same images")
    options = podman_command(runtime).run_options
    theirs = DockerEnvironment(
        image=base_image,
        cwd="/tmp",
        executable="podman",
        run_args=["--rm", "--network", "none", *options],
    )
    try:
        for command in (
            "echo a; echo b >&2",
            "exit 7",
            "cat /nothing",
            "printf 'no newline'",
            "nosuchprogram",
        ):
            action = {"command": command}
            assert environment.execute(action) == theirs.execute(action), command
    finally:
        theirs.cleanup()
