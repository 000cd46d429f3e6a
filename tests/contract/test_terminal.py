"""Terminal tasks on a real engine: their images are built, and only solutions are rewarded (T4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec
from tests.contract.terminals import BASE, attempt, idle, make_task
from tests.params import first_quick

REWARD = "/logs/verifier/reward.txt"
BUILTIN = ("counter-service", "log-report", "lost-commit", "mend-backup")


async def answer(lease: Sandbox) -> None:
    """Write the working directory to a file in it."""
    (await lease.exec(["/bin/sh", "-c", "pwd > answer"])).check()


@pytest.fixture(scope="module")
def builtin(runtime: hr.Runtime, base_image: str) -> Terminal:
    """The tasks in the package; skip the test on an engine that refuses their images."""
    environment = Terminal()
    if runtime.name == "bubblewrap":
        item = next(iter(environment.items()))
        with pytest.raises(UnsupportedOptionError, match="only image"):
            environment.spec(item, ContainerSpec(image="host"), runtime.images)
        pytest.skip(
            "bubblewrap has only the host's programs; this test has checked that it refuses a "
            "task's image"
        )
    return environment


@pytest.mark.parametrize("task", first_quick(*BUILTIN))
def test_the_known_solution_has_reward_1(runtime: hr.Runtime, builtin: Terminal, task: str) -> None:
    """T4: the image is built from its whole recipe, and the tests see the agent's work."""

    async def solve(lease: Sandbox) -> None:
        item = next(item for item in builtin.items() if item.id == task)
        (await builtin.solve(item, lease)).check()

    verdict = asyncio.run(attempt(runtime, builtin, task, solve))
    assert (verdict.reward, verdict.phase) == (1.0, "tests"), verdict
    assert verdict.facts["verify"] == "fresh"


@pytest.mark.slow
@pytest.mark.parametrize("task", first_quick(*BUILTIN))
def test_doing_nothing_has_reward_0(runtime: hr.Runtime, builtin: Terminal, task: str) -> None:
    """T4: an agent that does nothing has no reward; the known solution shows that the tests work
    here.
    """
    verdict = asyncio.run(attempt(runtime, Terminal(), task, idle))
    assert (verdict.reward, verdict.facts["control"]) == (
        0.0,
        "the known solution has the reward 1",
    ), verdict


def test_an_image_is_built_once(runtime: hr.Runtime, builtin: Terminal, tmp_path: Path) -> None:
    """The name of the image depends on its sources; unchanged sources are not built again."""
    item = next(iter(builtin.items()))
    specs = [builtin.spec(item, ContainerSpec(image="x"), runtime.images) for _ in range(2)]
    assert specs[0] == specs[1]
    assert specs[0].image.startswith("localhost/hyperruntime-task/counter-service:")


def test_agent_and_tests_begin_in_the_working_directory_of_the_image(
    runtime: hr.Runtime, builtin: Terminal, tmp_path: Path
) -> None:
    """Also if a base image set it, or a variable of the Dockerfile names it; ``/app`` is not
    special.
    """
    base = "localhost/hyperruntime-test/workdir:latest"
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN mkdir /app\nWORKDIR /srv/project\n")
    runtime.images.build(base, containerfile=tmp_path / "Dockerfile", context=tmp_path, force=True)
    try:
        for name, lines, begin in (
            ("base", "RUN true\n", "/srv/project"),
            ("variable", "ENV HERE=/opt/here\nWORKDIR $HERE\n", "/opt/here"),
        ):
            test = (
                f'[ "$PWD" = {begin} ] && [ "$(cat answer)" = {begin} ] && echo 1 > {REWARD} || '
                f"echo 0 > {REWARD}"
            )
            folder = make_task(tmp_path / "tasks" / name, f"#!/bin/bash\n{test}\n")
            (folder / "environment" / "Dockerfile").write_text(f"FROM {base}\n{lines}")
            environment = Terminal(tasks=str(folder), control=False)
            verdict = asyncio.run(attempt(runtime, environment, name, answer))
            assert verdict.reward == 1.0, verdict
    finally:
        runtime.images.remove(base)


@pytest.mark.parametrize(
    ("json", "text", "reward"),
    [
        ('{"reward": 0.25}', "1", 0.25),
        ('{"style": 0.1, "length": 2, "ok": true}', "0.5", 0.5),
        ('{"only": 0.75}', "", 0.75),
    ],
)
def test_the_reward_of_json_comes_before_that_of_text(
    runtime: hr.Runtime, builtin: Terminal, tmp_path: Path, json: str, text: str, reward: float
) -> None:
    """As in Harbor: ``reward.txt`` is used if there is no ``reward.json``, or if that has no
    ``reward``.
    """
    test = f"#!/bin/bash\necho '{json}' > /logs/verifier/reward.json\n" + (
        f"echo {text} > {REWARD}\n" if text else ""
    )
    folder = make_task(tmp_path / "one", test)
    verdict = asyncio.run(
        attempt(runtime, Terminal(tasks=str(folder), control=False), "one", answer)
    )
    assert verdict.reward == reward, verdict
    assert "ok" not in verdict.parts


def test_the_shared_memory_of_a_compose_file_reaches_agent_and_tests(
    runtime: hr.Runtime, builtin: Terminal, tmp_path: Path
) -> None:
    """``shm_size`` is the size of ``/dev/shm`` in both containers."""
    test = (
        "#!/bin/bash\n[ \"$(cat answer) $(df -k /dev/shm | tail -1 | awk '{print $2}')\" = "
        "'98304 98304' ]"
    )
    folder = make_task(tmp_path / "one", f"{test} && echo 1 > {REWARD} || echo 0 > {REWARD}\n")
    (folder / "environment" / "docker-compose.yaml").write_text(
        "services: {main: {build: ., shm_size: 96m}}"
    )

    async def measure(lease: Sandbox) -> None:
        script = "df -k /dev/shm | tail -1 | awk '{print $2}' > answer"
        (await lease.exec(["/bin/sh", "-c", script])).check()

    verdict = asyncio.run(
        attempt(runtime, Terminal(tasks=str(folder), control=False), "one", measure)
    )
    assert verdict.reward == 1.0, verdict


def test_the_bytes_of_a_dockerfile_are_built_as_they_are(
    runtime: hr.Runtime, builtin: Terminal, tmp_path: Path
) -> None:
    """A comment that is not UTF-8 stops no build, and a here-document keeps the line ends of
    Windows.
    """
    test = (
        f"#!/bin/bash\n[ \"$(od -An -tx1 /srv/f)\" = ' 61 0d 0a' ] && echo 1 > {REWARD} || echo "
        f"0 > {REWARD}\n"
    )
    folder = make_task(tmp_path / "one", test)
    dockerfile = folder / "environment" / "Dockerfile"
    for lines in (b"COPY f /srv/f\n", b"COPY <<'EOF' /srv/f\na\r\nEOF\n"):
        dockerfile.write_bytes(f"FROM {BASE}\nWORKDIR /app\n".encode() + b"# caf\xe9\n" + lines)
        dockerfile.with_name("f").write_bytes(b"a\r\n")
        verdict = asyncio.run(
            attempt(runtime, Terminal(tasks=str(folder), control=False), "one", answer)
        )
        assert verdict.reward == 1.0, verdict
