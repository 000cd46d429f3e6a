"""Agents that are root and forge results get no reward; honest work is copied completely."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperenvironment_terminal import Terminal
from hyperenvironment_terminal.image import PREFIX
from hyperenvironment_terminal.judge import VerifierError
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.rollout.environment import Verdict
from hyperruntime.sandbox import Sandbox
from tests.contract.terminals import attempt, idle, make_task

OWN = ("forge", "links", "broken", "honest", "breaks", "hangs", "lazy")
# A program that gives the reward if the judge runs it instead of one of its tools.
FORGED = """#!/bin/sh
mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; exit 0
"""
SCRIPTED = """#!/bin/bash
echo 0 > /logs/verifier/reward.txt
export PYTHONPATH=/tests
python3 -m check && echo 1 > /logs/verifier/reward.txt
"""
CHECK = """
import json, sys
with open("/app/answer.json") as file:
    answer = json.load(file)
print("answer", answer)
sys.exit(answer != {"answer": 42})
"""
STATE = """
def test_the_answer():
    with open("/app/answer.json") as file:
        assert "42" in file.read()
"""
# Each line is a separate attack; none stops the others.
IN_FILES = f"""
cat > /forged <<'END'
{FORGED}END
chmod 755 /forged
mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo '{{"reward": 1}}' > /logs/verifier/reward.json
cp /forged /tests/test.sh; echo 'def test(): pass' > /tests/test_final_state.py
echo 'alias python3=/forged' >> /root/.bashrc; echo 'PATH=/root/shims:$PATH' >> /root/.profile
mkdir -p /root/shims; cp /forged /root/shims/python3; cp /forged /root/shims/bash
echo 'BASH_ENV=/forged' >> /etc/environment; echo 'export BASH_ENV=/forged' > /etc/profile.d/a.sh
printf 'while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; sleep 0.01; done' > /root/again
setsid sh /root/again >/dev/null 2>&1 &
echo '{{"answer": 1}}' > /app/answer.json
"""
IN_TOOLS = """
forger='import os; os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1"); os._exit(0)'
for place in /app/json.py /app/sitecustomize.py /usr/lib/python3/dist-packages/sitecustomize.py \\
    /etc/python3.11/sitecustomize.py /usr/lib/python3.11/json/__init__.py /conftest.py /app/conftest.py \\
    /root/.local/lib/python3.11/site-packages/usercustomize.py /usr/local/lib/python3.11/dist-packages/pytest.py; do
    mkdir -p "$(dirname "$place")"; echo "$forger" > "$place"
done
echo '[pytest]
addopts = --collect-only' | tee /pytest.ini > /app/pytest.ini
ls /usr/lib/*/libmemusage.so > /etc/ld.so.preload
for tool in python3 bash sh env cat; do cp /forged /usr/local/bin/$tool; done
cp /forged /usr/bin/.new; mv /usr/bin/.new /usr/bin/python3.11; cp /forged /bin/bash.new; mv /bin/bash.new /bin/bash
"""


def run(runtime: hr.Runtime, folder: Path, script: str, verify: str = "fresh") -> Verdict:
    """Run a script as the agent; return the verdict."""

    async def agent(lease: Sandbox) -> None:
        await lease.exec(["/bin/sh", "-c", script])

    return asyncio.run(
        attempt(runtime, Terminal(tasks=str(folder), verify=verify), folder.name, agent)
    )


@pytest.fixture(autouse=True, scope="module")
def no_image_left(runtime: hr.Runtime) -> Iterator[None]:
    """Remove the images of tasks that only these tests have."""
    yield
    for reference in [name for image in runtime.images.list() for name in image.references]:
        if reference.startswith(PREFIX) and reference.removeprefix(PREFIX).partition(":")[0] in OWN:
            with suppress(HyperRuntimeError):  # another run of these tests uses it
                runtime.images.remove(reference)


@pytest.fixture(autouse=True)
def needs_an_image(runtime: hr.Runtime, base_image: str) -> None:
    """Skip the tests on bubblewrap, which refuses the images of tasks; test_terminal.py checks
    this.
    """
    if runtime.name == "bubblewrap":
        pytest.skip("bubblewrap refuses the images of tasks; test_terminal.py checks this")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["test.sh", "test_final_state.py"])
def test_an_agent_that_forges_everything_in_reach_gets_no_reward(
    runtime: hr.Runtime, tmp_path: Path, form: str
) -> None:
    """W22: reward files, tests, shells, Python and its modules, the loader, pytest's settings,
    background processes.
    """
    folder = make_task(tmp_path / "forge", SCRIPTED if form == "test.sh" else STATE, name=form)
    (folder / "tests" / "check.py").write_text(CHECK)
    verdict = run(runtime, folder, IN_FILES + IN_TOOLS)
    assert (verdict.reward, verdict.phase) == (0.0, "tests"), verdict
    withheld = set(verdict.facts["withheld"])
    assert {
        "/etc/ld.so.preload",
        "/conftest.py",
        "/pytest.ini",
        "/usr/local/bin/python3",
    } <= withheld
    assert "Memory usage" not in verdict.facts["output"], "the agent's preloaded library was loaded"
    honest = run(
        runtime,
        folder,
        IN_FILES + IN_TOOLS.replace("\nls ", "\necho '{\"answer\": 42}' > /app/answer.json\nls "),
    )
    assert honest.reward == 1.0, "the honest part of its work must count, despite its attacks"


@pytest.mark.slow
def test_forged_files_in_the_agents_own_container_give_no_reward(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """With ``verify=same``, the tests and the reward directory are replaced; the programs stay
    those of the agent.
    """
    folder = make_task(tmp_path / "forge", SCRIPTED)
    (folder / "tests" / "check.py").write_text(CHECK)
    assert run(runtime, folder, IN_FILES, "same").reward == 0.0
    assert run(runtime, folder, "echo '{\"answer\": 42}' > /app/answer.json", "same").reward == 1.0


@pytest.mark.slow
def test_links_do_not_bypass_protected_paths(runtime: hr.Runtime, tmp_path: Path) -> None:
    """An agent cannot reach other paths by replacing a directory by a link, or a link by a
    directory.
    """
    folder = make_task(tmp_path / "links", SCRIPTED)
    (folder / "tests" / "check.py").write_text(CHECK)
    script = f"""
cat > /app/python3 <<'END'
{FORGED}END
chmod 755 /app/python3; mkdir -p /srv/evil/verifier; cp /app/python3 /srv/evil/test.sh
echo 1 > /srv/evil/verifier/reward.txt
rm -rf /tests /logs; ln -s /srv/evil /tests; ln -s /srv/evil /logs
rm -rf /usr/local; ln -s /app /usr/local; mv /var /var.old; ln -s /srv/evil /var
rm /app/data; mkdir /app/data; ln -s /usr/bin /app/data/bin; ln -s / /app/root
"""
    verdict = run(runtime, folder, script)
    assert (verdict.reward, verdict.phase) == (0.0, "tests"), verdict
    # fuse-overlayfs cannot remove a directory of the image that was not empty.
    moved = set() if runtime.name == "apptainer" else {"/usr/local", "/var"}
    assert {"/tests", "/logs"} | moved <= set(verdict.facts["withheld"])


@pytest.mark.slow
def test_an_agent_that_breaks_its_container_gets_no_reward(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """A container that cannot be read counts as no work, not as an infrastructure failure."""
    folder = make_task(tmp_path / "broken", "echo 1 > /logs/verifier/reward.txt")
    verdict = run(runtime, folder, "rm -f /usr/bin/find")
    assert (verdict.reward, verdict.phase) == (0.0, "state")
    liar = "printf '#!/bin/sh\\nprintf x\\n' > /usr/bin/find"
    assert run(runtime, folder, liar).phase == "state"


def test_honest_work_is_copied_completely(runtime: hr.Runtime, tmp_path: Path) -> None:
    """New, changed and removed files; modes, links, odd names, empty directories; a system
    setting.
    """
    checks = r"""
test ! -e /app/gone && test ! -e /app/old && test "$(cat /app/changed)" = after
test "$(stat -c %a /app/changed)" = 640 && test "$(stat -c %Y /app/changed)" = 1000000000
test "$(readlink /app/absolute)" = /srv/data/kept && test "$(cat /app/absolute)" = 1
test "$(readlink /app/dangling)" = ../nowhere && test -d "/app/empty dir"
test "$(cat "/app/$(printf 'new\nline \377 x')")" = odd && test "$(cat /app/second)" = first
test -d /app/data && test ! -L /app/data && test "$(cat /app/data/inner)" = inner && test "$(cat /srv/data/kept)" = 1
grep -q hello /etc/motd && grep -q mine /root/.bashrc && test -u /app/setuid && test "$(wc -c < /app/large)" = 20000000
"""
    folder = make_task(
        tmp_path / "honest", f"#!/bin/bash\nset -ex\n{checks}echo 1 > /logs/verifier/reward.txt\n"
    )
    work = r"""set -e
rm -rf /app/gone /app/old; echo after > /app/changed; chmod 640 /app/changed; touch -d @1000000000 /app/changed
ln -s /srv/data/kept /app/absolute; ln -s ../nowhere /app/dangling; mkdir "/app/empty dir"
echo odd > "/app/$(printf 'new\nline \377 x')"; echo first > /app/first; ln /app/first /app/second
rm /app/data; mkdir /app/data; echo inner > /app/data/inner
echo hello >> /etc/motd; echo "# mine" >> /root/.bashrc; touch /app/setuid; chmod 4755 /app/setuid
head -c 20000000 /dev/zero > /app/large; mkfifo /app/pipe
"""
    verdict = run(runtime, folder, work)
    assert verdict.reward == 1.0, verdict
    assert set(verdict.facts["withheld"]) <= {"/app/pipe"}  # not every file system supports FIFOs


@pytest.mark.slow
def test_tests_without_a_verdict_count_against_an_agent_only_if_they_work_without_it(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """W23: a broken or endless test is an infrastructure failure; if the agent breaks it, the
    reward is 0.
    """
    breaks = make_task(
        tmp_path / "breaks", "[ -e /app/x ] && exit 3\necho 0.5 > /logs/verifier/reward.txt"
    )
    verdict = run(runtime, breaks, "touch /app/x")
    assert (verdict.reward, verdict.phase) == (0.0, "tests")
    assert "without the agent's work" in verdict.detail
    assert run(runtime, breaks, "true").reward == 0.5
    hangs = make_task(
        tmp_path / "hangs",
        "[ -e /app/x ] && sleep 1000\necho 1 > /logs/verifier/reward.txt",
        settings="[verifier]\ntimeout_sec = 12\n",
    )
    assert run(runtime, hangs, "touch /app/x").reward == 0.0
    broken = make_task(tmp_path / "broken", "echo oh-no >&2; exit 3")
    with pytest.raises(VerifierError, match="oh-no"):
        run(runtime, broken, "true")


@pytest.mark.slow
def test_work_without_tool_calls_has_reward_0(runtime: hr.Runtime, tmp_path: Path) -> None:
    """R10: without a tool call, the tests do not run."""
    folder = make_task(tmp_path / "lazy", "echo 1 > /logs/verifier/reward.txt")
    verdict = asyncio.run(attempt(runtime, Terminal(tasks=str(folder)), "lazy", idle, calls=0))
    assert (verdict.reward, verdict.phase) == (0.0, "agent")
