"""inspect_ai's own conformance suite on the provider, and what its suite does not check."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from inspect_ai import eval as run_eval
from inspect_ai.util import SandboxEnvironment, SandboxUnavailableError
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - its 44 checks

import hyperruntime as hr
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime_inspect_ai.config import read_config
from tests.integrations.inspect_ai.example import arithmetic

pytestmark = pytest.mark.engine

IMAGE = "localhost/hyperruntime-test/inspect:latest"
ADDUSER = """#!/bin/sh
for name do :; done
echo "$name:x:7001:7001::/tmp:/bin/sh" >>/etc/passwd
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with ``adduser``, which a check of inspect_ai calls."""
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    (folder / "adduser").write_text(ADDUSER)
    (folder / "adduser").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def image(runtime: hr.Runtime, base_image: str, programs: Path) -> str:
    """Return the base image with the programs."""
    (programs / "Containerfile").write_text(f"FROM {base_image}\nCOPY adduser /usr/sbin/\n")
    try:
        return runtime.images.build(IMAGE, containerfile=programs / "Containerfile", force=True)
    except UnsupportedOptionError:
        return base_image  # the engine has only one image


@pytest.fixture(scope="module")
def config(
    runtime_name: str, image: str, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return a configuration file for the engine under test."""
    path = tmp_path_factory.mktemp("config") / "hyperruntime.toml"
    text = f'runtime = "{runtime_name}"\nimage = "{image}"\nworkdir = "/tmp"\nuser = "nobody"\n'
    if runtime_name == "bubblewrap":  # it builds no images
        text += (
            f'env = {{ PATH = "/programs:{os.defpath}" }}\n[[mounts]]\nsource = '
            f'"{programs}"\ntarget = "/programs"\n'
        )
    path.write_text(text)
    return str(path)


@pytest.fixture
async def sandbox_env(config: str) -> AsyncIterator[SandboxEnvironment]:
    provider = registry_find_sandboxenv("hyperruntime")  # found by its entry point
    await provider.task_init("self check", config)
    environments = await provider.sample_init("self check", config, {})
    yield environments["default"]
    await provider.sample_cleanup("self check", config, environments, False)
    await provider.task_cleanup("self check", config, True)


def test_the_suite_of_inspect_ai_has_the_expected_number_of_checks() -> None:
    assert len(self_check.__all__) == 44


async def test_a_container_that_has_ended_is_not_the_output_of_a_command(
    sandbox_env: SandboxEnvironment,
) -> None:
    sandbox_env.container.close()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])
    # the second on engines without such a command
    with pytest.raises((ConnectionError, NotImplementedError)):
        await sandbox_env.connection()


@pytest.mark.parametrize("user", [None, "root"])
async def test_the_command_of_a_connection_is_a_shell_of_the_user(
    sandbox_env: SandboxEnvironment, runtime_name: str, user: str | None
) -> None:
    if runtime_name not in ("podman", "docker"):
        with pytest.raises(NotImplementedError, match=runtime_name):
            await sandbox_env.connection(user=user)
        return
    await sandbox_env.write_file("mine", "of this container")
    connection = await sandbox_env.connection(user=user)
    said, code = in_terminal(
        connection.command, "echo $(cat mine) $((6 * 7)) $(id -un) $PWD; exit 3\n"
    )
    assert f"of this container 42 {user or 'nobody'} /tmp\r\n" in said
    assert code == 3


def in_terminal(command: str, typed: str) -> tuple[str, int]:
    """Return what a command on a terminal shows after a text was typed, and its exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        shlex.split(command), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    # EIO: no program has the terminal any more
    with open(ours, "rb", buffering=0) as terminal, suppress(OSError):
        shown = b""
        while data := terminal.read(4096):
            shown += data
    return shown.decode(), process.wait()


async def test_the_tail_of_long_output_is_kept(sandbox_env: SandboxEnvironment) -> None:
    result = await sandbox_env.exec(
        ["sh", "-c", "head -c 40000000 /dev/zero | tr '\\0' x; echo the end"]
    )
    assert result.stdout.endswith("xxxthe end\n")
    assert len(result.stdout) == 10 * 1024**2


async def test_a_command_that_timed_out_is_tried_again_up_to_twice(
    sandbox_env: SandboxEnvironment,
) -> None:
    late = ["sh", "-c", "echo x >>tries; sleep 1000"]
    with pytest.raises(TimeoutError):
        await sandbox_env.exec(late, timeout=1, timeout_retry=False)
    assert await sandbox_env.read_file("tries") == "x\n"
    with pytest.raises(TimeoutError):
        await sandbox_env.exec(late, timeout=1)
    assert await sandbox_env.read_file("tries") == "x\n" * 4
    second = ["sh", "-c", "cat; test -e again || { touch again; exec sleep 1000; }"]
    result = await sandbox_env.exec(second, input="given to each try", timeout=1)
    assert (result.success, result.stdout) == (True, "given to each try")


def test_each_sample_of_an_evaluation_has_its_container(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    log = run_eval(arithmetic(), model="mockllm/model", display="none", log_dir=str(tmp_path))[0]
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    # the names of three containers
    assert len({sample.output.completion for sample in log.samples or ()}) == 3


@pytest.mark.parametrize(
    ("name", "text", "error", "word"),
    [
        ("x.toml", "imagee = 'base'", SpecError, "imagee"),
        ("x.toml", "[[[", SpecError, "TOML"),
        (
            "compose.yaml",
            "services: {default: {image: x}, b: {image: y, privileged: true}}",
            UnsupportedOptionError,
            "privileged.*'b'",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, name: str, text: str, error: type[Exception], word: str
) -> None:
    (tmp_path / name).write_text(text)
    provider = registry_find_sandboxenv("hyperruntime")
    with pytest.raises(error, match=word):
        asyncio.run(provider.task_init("x", str(tmp_path / name)))


def test_keys_of_a_compose_file_are_those_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "services: {one: {build: {context: ., no_cache: true}, mem_limit: 512m, cpus: 1.5, "
        "x-local: true}}"
    )
    plan = read_config(str(tmp_path / "compose.yaml"))
    assert (plan.spec.limits.memory_bytes, plan.spec.limits.cpus, plan.spec.network) == (
        512 * 1024**2,
        1.5,
        "bridge",
    )
    assert (plan.dockerfile, plan.context, plan.is_cached) == (
        tmp_path / "Dockerfile",
        tmp_path,
        False,
    )


async def test_a_compose_file_of_one_service_is_a_sandbox(
    runtime_name: str, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    (tmp_path / "compose.yaml").write_text(
        f"services: {{one: {{image: '{image}', command: sleep infinity, network_mode: none, "
        "working_dir: /usr, environment: [A=b=c]}}"
    )
    path = str(tmp_path / "compose.yaml")
    provider = registry_find_sandboxenv("hyperruntime")
    await provider.task_init("x", path)
    environments = await provider.sample_init("x", path, {})
    try:
        assert (
            await environments["default"].exec(["sh", "-c", "pwd; echo $A"])
        ).stdout == "/usr\nb=c\n"
    finally:
        await provider.sample_cleanup("x", path, environments, True)


async def test_each_service_of_a_compose_file_is_a_sandbox(
    runtime_name: str, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is the default; a service waits for those that it needs."""
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    (tmp_path / "compose.yaml").write_text(f"""
services:
  web:
    image: {image}
    command: [python3, -m, http.server, "8000", --bind, web]
    healthcheck: {{test: [CMD, python3, -c, "import socket; socket.create_connection(('web', 8000))"]}}
  agent:
    image: {image}
    x-default: true
    network_mode: none
    command: sleep infinity
    working_dir: /tmp
    depends_on: {{web: {{condition: service_healthy}}}}
""")
    path = str(tmp_path / "compose.yaml")
    provider = registry_find_sandboxenv("hyperruntime")
    await provider.task_init("x", path)
    environments = await provider.sample_init("x", path, {})
    try:
        assert list(environments) == ["agent", "web"]
        ask = "import urllib.request as u; print(u.urlopen('http://web:8000/etc/hostname').status)"
        assert (await environments["agent"].exec(["python3", "-c", ask])).stdout == "200\n"
        await environments["web"].write_file("/only-here", "x")
        assert not (await environments["agent"].exec(["test", "-e", "/only-here"])).success
    finally:
        await provider.sample_cleanup("x", path, environments, True)
