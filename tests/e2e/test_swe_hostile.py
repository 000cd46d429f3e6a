"""Agents that attack the judge instead of solving the problem: they get no reward and do no harm
(W22).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import SandboxLostError
from hyperruntime.rollout.environment import Verdict
from hyperruntime.sandbox import Sandbox
from tests import forgeries
from tests.params import first_quick
from tests.swecase import (
    bash,
    judged,
    make_site,
    open_bench,
    rewards,
    row_of,
    swe_of,
    with_site,
)

pytestmark = pytest.mark.engine
Step = Callable[[Sandbox], Awaitable[None]]

FILES = {
    "shop/__init__.py": "from shop.price import total\n",
    "shop/price.py": "def total(prices):\n    return sum(prices[1:])\n",
    "tests/__init__.py": "",
    "tests/test_price.py": (
        "from shop import total\n\n"
        "def test_empty():\n    assert total([]) == 0\n\n"
        "def test_sum():\n    assert total([1, 2]) == 3\n"
    ),
    "setup.cfg": "[tool:pytest]\naddopts = -q\n",
    "pyproject.toml": "[project]\nname = 'shop'\nversion = '1'\n",
}
TESTS = {
    "FAIL_TO_PASS": ["tests/test_price.py::test_sum"],
    "PASS_TO_PASS": ["tests/test_price.py::test_empty"],
}
HONEST = "sed -i 's/prices.1:./prices/' shop/price.py"
HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
"""
# These leave no change that counts, so no judge runs.
WITHOUT_EFFECT = {
    "nothing": "ls; git log --all; git fsck --lost-found",
    "tests": "sed -i 's/assert .*/assert True/' tests/*.py; chmod 444 tests/*",
    "tests removed": "rm -r tests; mkdir tests; ln -s /dev/null tests/test_price.py",
    "tests are a link": "mv tests elsewhere_tests; rm -r elsewhere_tests; ln -s /tmp tests",
    "conftest": f"cat > conftest.py <<'E'\n{HOOK}\nE\nmkdir -p shop/deep; cp conftest.py shop/deep; cp "
        "conftest.py tests",
    "settings": "echo '[pytest]' | tee pytest.ini .pytest.ini tox.ini; echo 'addopts = --co' >> "
        "pytest.ini",
    "virtual environment": (
        "mkdir -p .venv/bin venv/bin; printf '#!/bin/sh\\nexit 0\\n' > .venv/bin/python; chmod "
        "+x .venv/bin/python;cp .venv/bin/python venv/bin/python3; echo home = / > "
        ".venv/pyvenv.cfg"
    ),
    "customization": "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py "
        "shop/sitecustomize.py x.pth",
    "plugin by entry point": (
        "mkdir x.egg-info; printf '[pytest11]\\nx = xhook\\n' > x.egg-info/entry_points.txt;"
        "printf 'Name: x\\nVersion: 1\\n' > x.egg-info/PKG-INFO"
    ),
    "hooks of git": (
        "mkdir -p .git/hooks; for h in post-checkout pre-commit reference-transaction "
        "fsmonitor; do printf '#!/bin/sh\\ntouch /tmp/hooked\\n' > .git/hooks/$h; chmod +x "
        ".git/hooks/$h; done;git config core.hooksPath .git/hooks; git config core.fsmonitor "
        ".git/hooks/fsmonitor;git config core.worktree /; git config filter.x.clean 'touch "
        "/tmp/filtered'; echo '* filter=x' > .git/info/attributes"
    ),
    "objects of git": (
        "git commit -q --allow-empty -m forged; git branch -f main HEAD; rm -rf .git/objects; "
        "mkdir -p .git/objects/info;echo /root > .git/objects/info/alternates; rm -rf .git; ln "
        "-s / .git"
    ),
    "shims": (
        "mkdir -p ~/bin ~/.local/bin ~/.config/git ~/.config/pip; for p in python3 git tar sh "
        "pytest; do for d in ~/bin ~/.local/bin /usr/local/bin /tmp; do printf "
        "'#!/bin/sh\\nexit 0\\n' > $d/$p; chmod +x $d/$p; done;done; echo 'PATH=/tmp:$PATH' >> "
        "~/.bashrc; cp ~/.bashrc ~/.profile; printf '[core]\\nhooksPath=/tmp\\n' > ~/.gitconfig"
    ),
    "huge": "truncate -s 900M shop/huge.bin",
    "special": "mkfifo shop/pipe; rm shop/price.py; mkfifo shop/price.py",
    "gone": "cd ..; rm -rf \"$OLDPWD\"",
    "a link instead": "cd ..; mv \"$OLDPWD\" away; ln -s away \"$OLDPWD\"",
}  # fmt: skip
# These reach the judge and fail there.
JUDGED = {
    "settings that others share": (
        "printf '[tool:pytest]\\naddopts = --collect-only\\n' > setup.cfg;printf "
        "'[tool.pytest.ini_options]\\naddopts = \"--deselect "
        "tests/test_price.py::test_sum\"\\n' >> pyproject.toml"
    ),
    "a runner of its own": (
        "for n in pytest unittest pluggy json os sys; do echo 'import os; os._exit(0)' > $n.py; "
        "done;mkdir _pytest; cp json.py _pytest/__init__.py"
    ),
    "names like options": "for n in -p --co @args -rf '$(touch x)' 'a\nb' '--rootdir=x'; do echo 1 > ./\"$n\"; "
        "done",
    "ends with success": "printf 'import os\\nos._exit(0)\\n' > shop/__init__.py",
    "ends the session": "printf 'import pytest\\npytest.exit(\"done\", 0)\\n' > shop/__init__.py",
    "skips": "printf 'import pytest\\ndef total(prices):\\n    pytest.skip()\\n' > shop/price.py",
    "expects to fail": "printf 'import pytest\\ndef total(prices):\\n    pytest.xfail()\\n' > shop/price.py",
    "reports without the secret": (
        "cat >> shop/price.py <<'E'\nimport os, json\nfor fd in range(3, 30):\n    for t in "
        "('sum', 'empty'):\n        try: os.write(fd, (json.dumps({'kind': 'test', 'id': "
        "'tests/test_price.py::test_' + t, 'when': 'call', 'outcome': 'passed', 'xfail': "
        "False}) + chr(10)).encode())\n        except OSError: pass\nE"
    ),
    "patches the runner": (
        "cat >> shop/__init__.py <<'E'\nimport _pytest.python, _pytest.reports\n"
        "_pytest.python.Function.runtest = lambda self: None\nE"
    ),
    "patches the reports": (
        "cat >> shop/__init__.py <<'E'\nimport _pytest.reports\nold = "
        "_pytest.reports.TestReport.__init__\ndef new(self, *a, **k):\n    old(self, *a, **k)\n "
        "   self.outcome, self.longrepr = 'passed', None\n_pytest.reports.TestReport.__init__ = "
        "new\nE"
    ),
    "another module under the name": (
        "cat >> shop/__init__.py <<'E'\nimport sys, types\nm = types.ModuleType('test_price')\n"
        "m.test_sum = m.test_empty = lambda: None\nsys.modules['tests.test_price'] = m\nE"
    ),
    "writes while it is read": (  # it is never right, so the captured state cannot be
        "setsid bash -c 'while :; do echo \"def total(p): return 1\" > shop/price.py; touch "
        "written; echo \"def total(p): return 0\" > shop/price.py; done' >/dev/null 2>&1 &until "
        "[ -e written ]; do sleep 0.02; done; rm -r tests; echo 1 > new.txt"
    ),
    "a link out of the tree": "echo 1 > new.txt; rm -r shop; ln -s /etc shop; ln -s ../../../root/.ssh keys; ln -s / "
        "all",
    "kills its judges": (
        "printf 'import os, signal\\nos.kill(-1, signal.SIGKILL)\\n' > shop/__init__.py"
    ),
}  # fmt: skip


# The diff of a new file without its lines.
NEW_FILE = (
    "diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 "
    "+1,{size} @@"
)
# These forgeries never see the text that they wait for, so they forge nothing.
KNOWN = ("a digest of a file that the agent saw", "the commit of the judged state")


def fingerprint(directory: Path) -> str:
    """Return a digest of all files in a directory."""
    parts = sorted(
        (str(path), path.read_bytes()) for path in directory.rglob("*") if path.is_file()
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def test_forged_rewards_do_not_count_and_the_verdict_says_which_protections_held(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """W22: code under test that reports instead of its tests; the judge's own user depends on the
    engine.
    """
    files = dict(forgeries.FILES)
    hidden = files.pop("tests/test_rules.py").splitlines()
    head = NEW_FILE.format(path="tests/test_rules.py", size=len(hidden))
    patch = "\n".join([head, *(f"+{one}" for one in hidden), ""])
    wanted = forgeries.WANTED["unittest"]
    row = row_of(tmp_path / "shop", files, FAIL_TO_PASS=wanted, runner="unittest", test_patch=patch)
    environment = swe_of(tmp_path, row)
    names = (
        "walks frames to the reporter",
        "patches the tests by name",
        "writes to its parents",
        "outlives its test",
    )
    programs = {name: forgeries.UNITTEST[name] for name in names}
    programs |= {name: forgeries.recognizes(name) for name in forgeries.RECOGNIZES}
    agents = {name: f"cat >> shop/price.py <<'E'\n{text}\nE" for name, text in programs.items()}
    verdicts = judged(runtime, base_image, environment, {**agents, "honest": HONEST})
    assert rewards(verdicts) == {**dict.fromkeys(programs, 0.0), "honest": 1.0}
    forged = {name: verdicts[name].facts["forged"] for name in (*names[:2], *forgeries.RECOGNIZES)}
    assert forged == {name: name not in KNOWN for name in forged}
    held = {
        "separate_user": runtime.info.users,
        "own_processes": True,
        "controls": 2,
        "no_capabilities": True,
    }
    assert verdicts["honest"].facts["protections"] == {
        "untraceable": True,
        "kept_in_tree": True,
        **held,
    }


@pytest.mark.slow
def test_agents_that_attack_the_judge_get_no_reward(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """W22, W24: all attacks run beside an honest agent, which gets its reward; the cache stays
    unchanged.
    """
    environment = swe_of(tmp_path, row_of(tmp_path / "shop", FILES, **TESTS))
    agents = {"honest": HONEST, **WITHOUT_EFFECT, **JUDGED, "honest again": HONEST}
    seen: dict[str, Verdict] = {}
    unscored: set[str] = set()

    async def run_all() -> None:
        item = next(iter(environment.items()))
        base = with_site(hr.ContainerSpec(image=base_image), make_site(tmp_path / "site"))
        limit = asyncio.Semaphore(3)
        async with AsyncExitStack() as stack:
            bench = await open_bench(stack, runtime, base, environment, item)

            async def one(name: str) -> None:
                async with limit:
                    try:
                        seen[name] = await bench.trajectory(item, bash(agents[name]))
                    except SandboxLostError:
                        unscored.add(name)

            await one("honest")
            before.append(fingerprint(tmp_path / "cache"))
            async with asyncio.TaskGroup() as group:
                for name in agents:
                    if name != "honest":
                        group.create_task(one(name))

    before: list[str] = []
    asyncio.run(run_all())
    # Without separate users, a candidate can kill its judge; it gets no reward for that either.
    assert unscored == (set() if runtime.info.users else {"kills its judges"})
    honest = {name for name, verdict in seen.items() if verdict.reward == 1.0}
    assert honest == {"honest", "honest again"}, {
        name: seen[name] for name in honest ^ {"honest", "honest again"}
    }
    assert {
        name: verdict.reward for name, verdict in seen.items() if verdict.reward not in (0.0, 1.0)
    } == {}
    wrong = {name: seen[name] for name in WITHOUT_EFFECT if seen[name].phase != "agent"}
    assert wrong == {}
    wrong = {
        name: seen[name]
        for name in JUDGED.keys() - unscored
        if seen[name].phase not in ("tests", "install")
    }
    assert wrong == {}
    assert [
        seen[name].facts["forged"] for name in ("patches the runner", "patches the reports")
    ] == [True, True]
    assert ["tests/test_price.py", "tests is protected"] in seen["tests"].facts["dropped"]
    assert fingerprint(tmp_path / "cache") == before[0]


# A process that outlives the agent: it fixes the fault, then makes the file ``done``.
MENDS = f"{HONEST}; touch ../done"
WAITS = f"echo $$ > ../pid; until [ -e ../go ]; do sleep 0.02; done; {MENDS}"
IN_THE_BACKGROUND = (
    "echo 1 > new.txt; setsid bash -c '{}' >/dev/null 2>&1 & until [ -s ../{} ]; do sleep 0.02; "
    "done"
)


async def say_go(lease: Sandbox) -> None:
    """Let the process fix the fault, and wait until it has."""
    done = await lease.exec(
        ["bash", "-c", "touch go; until [ -e done ]; do sleep 0.02; done"], timeout_s=60
    )
    assert done.exit_code == 0, "no process is in the background"


async def end_it(lease: Sandbox) -> None:
    """End the processes of the slot, as rollouts do before they judge; then give the signal to go,
    which none sees.
    """
    alive = "grep -qs . /proc/$(cat pid)/cmdline"
    assert (await lease.exec(["bash", "-c", alive], timeout_s=60)).exit_code == 0
    await lease.end_processes()
    gone = await lease.exec(
        ["bash", "-c", f"while {alive}; do sleep 0.02; done; touch go"], timeout_s=60
    )
    assert gone.exit_code == 0, "the process still runs"


async def do_nothing(lease: Sandbox) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("script", "before", "captured", "reward"),
    first_quick(
        (IN_THE_BACKGROUND.format(WAITS, "pid"), do_nothing, say_go, 0.0),
        (IN_THE_BACKGROUND.format(WAITS, "pid"), say_go, do_nothing, 1.0),
        (IN_THE_BACKGROUND.format(WAITS, "pid"), end_it, do_nothing, 0.0),
        (IN_THE_BACKGROUND.format(MENDS, "done").replace("-s", "-e"), do_nothing, do_nothing, 1.0),
    ),
    ids=["mends after the capture", "mends before the capture", "is ended", "has ended"],
)
def test_work_in_the_background_counts_up_to_the_capture(
    script: str,
    before: Step,
    captured: Step,
    reward: float,
    runtime: hr.Runtime,
    base_image: str,
    tmp_path: Path,
) -> None:
    """W22: the judge sees the captured files, and no later change by a process of the agent."""
    environment = swe_of(tmp_path, row_of(tmp_path / "shop", FILES, **TESTS))

    async def agent(lease: Sandbox, repo_dir: str) -> None:
        await bash(script)(lease, repo_dir)
        await before(lease)

    async def run() -> Verdict:
        item = next(iter(environment.items()))
        base = with_site(hr.ContainerSpec(image=base_image), make_site(tmp_path / "site"))
        async with AsyncExitStack() as stack:
            bench = await open_bench(stack, runtime, base, environment, item)
            return await bench.trajectory(item, agent, captured=captured)

    verdict = asyncio.run(run())
    assert (verdict.reward, verdict.phase) == (reward, "tests"), verdict


# These run as root of their own container, as agents do unless several share one.
AS_ROOT = {
    "tar": "printf '#!/bin/sh\\nexit 0\\n' > /tmp/tar; chmod +x /tmp/tar; cp /tmp/tar $(readlink "
    "-f $(command -v tar))",
    "shell": "echo 1 > new.txt; cp --remove-destination /bin/true /bin/sh; cp --remove-destination "
    "/bin/true /bin/bash",
    "another tree": (
        f"{HONEST}; cp -r . /tmp/copy; cp $(command -v tar) /tmp/real; echo 'def test_sum(): "
        "pass' > /tmp/copy/tests/test_price.py;rm /tmp/copy/shop/price.py; printf "
        "'#!/bin/bash\\nexec /tmp/real -cf - -C /tmp ./copy\\n' > /tmp/tar; chmod +x "
        "/tmp/tar;cp --remove-destination /tmp/tar $(command -v tar)"
    ),
    "everything": "rm -rf --one-file-system --no-preserve-root /bin /usr /lib /etc 2>/dev/null; true",
}


@pytest.mark.slow
def test_an_agent_that_is_root_in_its_container_gets_no_reward_either(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """W22: the agent may replace the programs of its container, so their output is data; the cache
    is not in there.
    """
    environment = swe_of(tmp_path, row_of(tmp_path / "shop", FILES, **TESTS))
    found: list[bytes] = []

    async def search(lease: Sandbox, repo_dir: str) -> None:
        program = (
            "find / -xdev -name workspace.tar -o -xdev -name '*.pack' -not -path "
            f"'*/{repo_dir}/.git/*'; {HONEST}"
        )
        found.append((await lease.exec(["bash", "-c", program], workdir=repo_dir)).stdout)
        found.append(
            (await lease.exec(["grep", "-F", str(tmp_path), "/proc/self/mountinfo"])).stdout
        )

    async def run_all() -> dict[str, Verdict]:
        item = next(iter(environment.items()))
        base = with_site(hr.ContainerSpec(image=base_image), make_site(tmp_path / "site"))
        async with AsyncExitStack() as stack:
            bench = await open_bench(stack, runtime, base, environment, item, root=True)
            verdicts = {
                name: await bench.trajectory(item, bash(program))
                for name, program in AS_ROOT.items()
            }
            return {**verdicts, "honest": await bench.trajectory(item, search)}

    verdicts = asyncio.run(run_all())
    assert rewards(verdicts) == {
        **dict.fromkeys(AS_ROOT, 0.0),
        # tar is the host's there, so its repair counts
        "another tree": float(runtime.name == "bubblewrap"),
        "honest": 1.0,
    }
    mounts = [line for line in found[1].splitlines() if b"/opt/site" not in line]
    assert (found[0], mounts) == (b"", [])
