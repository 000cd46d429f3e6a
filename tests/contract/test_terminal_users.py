"""The users of terminal tasks: an agent of a task has the rights of its user, and none of the
tests'.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperenvironment_terminal.users import TaskUserError
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.rollout.environment import Verdict
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec
from tests.contract.terminals import attempt, idle, make_task

REWARD = "/logs/verifier/reward.txt"
IMAGE = """\
RUN mkdir -p /app /shared /home/ann /home/ben \\
    && for line in ann:x:4001:4001 ben:x:4002:4002 again:x:0:0 games:x:4003:4003; do \\
        echo "$line::/home/${line%%:*}:/bin/sh" >> /etc/passwd; done \\
    && for line in ann:x:4001: ben:x:4002: team:x:4100:ben,me wheels:x:0:games; do echo "$line" >> /etc/group; done \\
    && chown 4001:4001 /app /home/ann && chown 4002:4002 /home/ben && chgrp 4100 /shared && chmod 2770 /shared \\
    && echo s > /etc/of-root && chmod 600 /etc/of-root
WORKDIR /app
"""
TEST = rf"""#!/bin/bash
{{ id -u; echo $HOME; }} | tee /logs/verifier/who; grep -lE '^Uid:\s400' /proc/[0-9]*/status | wc -l; ls -ln /app
[ "$(cat /app/answer)" = right ] && echo 1 > {REWARD} || echo 0 > {REWARD}
"""
# Each line is a separate attack; none stops the others.
ATTACKS = f"""
echo x >> /etc/of-root; cat /etc/of-root; echo x > /etc/new; touch /usr/bin/new; rm -f /usr/bin/env
mkdir -p /logs/verifier /tests; echo 1 > {REWARD}; echo 'echo 1 > {REWARD}' > /tests/test.sh
setsid sh -c 'while :; do echo 1 > {REWARD}; echo "echo 1 > {REWARD}" > /tests/test.sh; sleep 0.01; done' &
for process in /proc/[0-9]*; do kill -9 ${{process#/proc/}}; echo 1 > $process/root/logs/verifier/reward.txt; done
ulimit -x 1; setsid sh -c 'while :; do rm -rf /tests/*; sleep 0.01; done' &
echo 'echo 1 > {REWARD}' >> ~/.bashrc; cp ~/.bashrc ~/.profile
"""  # the second loop has left its mark, by which processes are ended


@pytest.fixture(scope="module", autouse=True)
def _images(runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that an engine which cannot run these tasks refuses them by name."""
    folder = make_task(
        tmp_path_factory.mktemp("tasks") / "one", TEST, settings=settings("ann"), image=IMAGE
    )
    environment = Terminal(tasks=str(folder))
    if runtime.name == "bubblewrap":
        with pytest.raises(UnsupportedOptionError, match="only image"):
            environment.spec(
                next(iter(environment.items())), ContainerSpec(image="host"), runtime.images
            )
        pytest.skip(
            "bubblewrap has only the host's programs; this has checked that it refuses a task's "
            "image"
        )
    if not runtime.info.image_owners:
        with pytest.raises(
            TaskUserError,
            match=rf"task 'one' names the user 'ann', but {runtime.name} .*use Podman",
        ):
            asyncio.run(attempt(runtime, environment, "one", idle))
        pytest.skip(
            "files of images all belong to root; this has checked that a task of another user "
            "is refused"
        )


def settings(agent: object = None, verifier: object = None) -> str:
    """Return a ``task.toml`` with users."""
    users = [
        (name, user)
        for name, user in (("agent", agent), ("verifier", verifier))
        if user is not None
    ]
    return "[environment]\nallow_internet = false\n" + "".join(
        f"[{name}]\nuser = {user!r}\n" for name, user in users
    )


def run(
    runtime: hr.Runtime, folder: Path, script: str, verify: str = "fresh"
) -> tuple[Verdict, str]:
    """Run a script as the agent; return the verdict, and what the script printed in the agent's
    ``bash`` tool.
    """
    printed = []

    async def agent(lease: Sandbox) -> None:
        result = await lease.tool("bash", {"command": script})
        printed.append(result.output)

    environment = Terminal(tasks=str(folder), verify=verify, control=False)
    verdict = asyncio.run(attempt(runtime, environment, folder.name, agent))
    return verdict, printed[0]


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("ann", "4001 4001 4001 /home/ann"),
        ("4001:4100", "4001 4100 4100 /home/ann"),
        (4999, "4999 4999 4999 /"),
        ("root", "0 0 0 /root"),
    ],
)
def test_the_agent_is_the_user_of_its_task(
    runtime: hr.Runtime, tmp_path: Path, user: object, said: str
) -> None:
    """By name, by uid, and with a group; the tests are root."""
    folder = make_task(tmp_path / "one", TEST, settings=settings(user), image=IMAGE)
    script = (
        "echo $(id -u) $(id -g) $(id -G) $HOME; pwd; echo right > answer || echo right > "
        "/app/answer"
    )
    verdict, printed = run(runtime, folder, script)
    assert printed.splitlines()[0] == said
    assert verdict.facts["output"].splitlines()[:2] == ["0", "/root"]
    assert verdict.reward == float(user != 4999), verdict  # who may not write the answer


def test_a_user_has_its_further_groups(runtime: hr.Runtime, tmp_path: Path) -> None:
    """As the image's ``/etc/group`` says."""
    folder = make_task(tmp_path / "one", TEST, settings=settings("ben"), image=IMAGE)
    verdict, printed = run(
        runtime, folder, "echo $(id -u) $(id -G) $HOME; touch /shared/f && ls -n /shared"
    )
    assert verdict.reward == 0.0
    assert printed.splitlines()[0] == "4002 4002 4100 /home/ben"
    assert "4002 4100" in printed.splitlines()[-1]


@pytest.mark.parametrize("verify", ["fresh", "same"])
@pytest.mark.parametrize("user", ["ann", "ben"])
def test_an_agent_gains_nothing_that_the_tests_have(
    runtime: hr.Runtime, tmp_path: Path, verify: str, user: str
) -> None:
    """Files and processes of root, the tests and their reward; nothing of it runs on."""
    folder = make_task(tmp_path / "one", TEST, settings=settings(user), image=IMAGE)
    verdict, printed = run(runtime, folder, ATTACKS + "true", verify)
    assert verdict.reward == 0.0, (verdict, printed)
    assert verdict.facts["output"].splitlines()[:3] == ["0", "/root", "0"], (
        "no process of an agent is left"
    )
    script = (
        "cat /etc/of-root; { echo x >> /etc/passwd; rm -f /usr/bin/env; } 2>&1; ls "
        "/usr/bin/env; sudo id"
    )
    verdict, printed = run(runtime, folder, script, verify)
    assert printed.count("denied") == 3, printed
    assert "uid=0" not in printed


@pytest.mark.parametrize("verify", ["fresh", "same"])
def test_the_tests_are_the_user_of_the_verifier(
    runtime: hr.Runtime, tmp_path: Path, verify: str
) -> None:
    """Also if it is the agent's user, whose processes have ended; the reward is theirs to write."""
    for agent, verifier, said in (
        ("ann", "ben", "4002"),
        ("ben", "ben", "4002"),
        (None, "ann", "4001"),
    ):
        folder = make_task(
            tmp_path / f"{agent}-{verifier}", TEST, settings=settings(agent, verifier), image=IMAGE
        )
        (folder / "tests" / "test.sh").chmod(0o600)
        script = "echo right > /app/answer; setsid sleep 1000 & true"
        verdict, _ = run(runtime, folder, script, verify)
        assert verdict.facts["output"].splitlines()[:2] == [said, f"/home/{verifier}"]
        assert verdict.reward == float(agent != "ben"), verdict


def test_pytest_and_the_known_solution_run_as_their_users(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """The solution as the agent; the control run of a reward 0 has the users of the task too."""
    test = (
        "import os\n\n\ndef test_it():\n    assert os.getuid() == 4002\n    assert "
        "os.stat('/app/who').st_uid == 4001\n"
    )
    folder = make_task(
        tmp_path / "one", test, name="test_final_state.py", solution="touch /app/who", settings=settings("ann", "ben"),
        image=IMAGE,
    )  # fmt: skip
    environment = Terminal(tasks=str(folder))
    verdict = asyncio.run(attempt(runtime, environment, "one", idle))
    assert (verdict.reward, verdict.facts["control"]) == (
        0.0,
        "the known solution has the reward 1",
    ), verdict
    verdict = asyncio.run(attempt(runtime, environment, "one", do_the_work))
    assert verdict.reward == 1.0, verdict


async def do_the_work(lease: Sandbox) -> None:
    """Do what the solution does."""
    (await lease.exec(["touch", "/app/who"])).check()


@pytest.mark.parametrize(
    ("agent", "verifier", "says"),
    [
        ("ghost", None, r"task 'one' names the user 'ghost', who does not exist in its image"),
        (None, "ghost", r"task 'one' names the user 'ghost', .*`user` of verifier"),
        ("ann:ghosts", None, r"'ann:ghosts', who does not exist"),
        ("games", None, r"'games', who is not an ordinary user"),
    ],
)
def test_a_user_that_cannot_be_is_refused_in_one_sentence(
    runtime: hr.Runtime, tmp_path: Path, agent: str | None, verifier: str | None, says: str
) -> None:
    """Before the agent works; the message names the task."""
    folder = make_task(tmp_path / "one", TEST, settings=settings(agent, verifier), image=IMAGE)
    with pytest.raises(TaskUserError, match=says) as refused:
        asyncio.run(attempt(runtime, Terminal(tasks=str(folder)), "one", idle))
    assert "\n" not in str(refused.value)


def test_a_user_that_cannot_enter_the_working_directory_is_refused(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """The message names the directory."""
    folder = make_task(
        tmp_path / "one", TEST, settings=settings("ann"), image=IMAGE + "WORKDIR /root\n"
    )
    with pytest.raises(
        TaskUserError, match=r"user of task 'one' cannot work in /root: .*no permission"
    ):
        asyncio.run(attempt(runtime, Terminal(tasks=str(folder)), "one", idle))
