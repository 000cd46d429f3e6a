"""Inherited limits, signals and variables of the caller's process break no container and no
command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.host.process import run_process
from tests.doubles import no_capabilities

pytestmark = pytest.mark.engine
# Prints what commands in a container see; it runs in its own process.
LOOK = textwrap.dedent(
    """
    import json, sys
    import hyperruntime as hr

    KILL = 'kill -"$1" $$; sleep 1; echo survived'
    with hr.open_runtime(sys.argv[1]) as runtime, runtime.container(hr.ContainerSpec(image=sys.argv[2])) as container:
        limits = container.exec(["cat", "/proc/self/limits"]).check().stdout.decode().splitlines()
        codes = {name: container.exec(["sh", "-c", KILL, "kill", name]).exit_code for name in ("HUP", "INT", "QUIT")}
        print(json.dumps({
            "processes": next(line.split()[3] for line in limits if line.startswith("Max processes")),
            "codes": codes,
            "env": container.exec(["env"]).check().stdout.decode(),
        }))
    """
)
DEFAULT = {"HUP": 129, "INT": 130, "QUIT": 131}


def seen_under(prefix: list[str], runtime_name: str, image: str, **env: str) -> Any:
    args = [*prefix, sys.executable, "-c", LOOK, runtime_name, image]
    done = run_process(args, env={**os.environ, **env}, timeout_s=120)
    assert done.exit_code == 0, done.stderr.decode()[-3000:]
    return json.loads(done.stdout)


def test_the_stricter_of_two_process_limits_applies(runtime_name: str, base_image: str) -> None:
    """Apptainer and bubblewrap once could not start a container if the user's limit was below
    limits.pids.
    """
    seen = seen_under(["prlimit", "--nproc=450:450"], runtime_name, base_image)
    assert seen["codes"] == DEFAULT
    # Docker's daemon has limits of its own, and root may have none; a cgroup enforces the pids
    # limit there.
    by_cgroup = runtime_name == "docker" or (os.geteuid() == 0 and seen["processes"] == "unlimited")
    assert by_cgroup or int(seen["processes"]) <= 450


def test_ignored_signals_are_not_inherited(runtime_name: str, base_image: str) -> None:
    """Under nohup, or in the background of a script, some signals are ignored; commands must not
    inherit this.
    """
    prefix = ["/bin/sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh"]
    assert seen_under(prefix, runtime_name, base_image)["codes"] == DEFAULT


def test_variables_of_environment_modules_break_no_engine_and_reach_no_command(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    """Incompatible libraries, functions with the names of programs, and a file that every bash
    reads.
    """
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in ("libseccomp.so.2", "libcap.so.2", "libgpgme.so.11", "libsmartcols.so.1"):
        shutil.copy(libm_of_this_machine(), libraries / name)
    read = tmp_path / "read"
    start = tmp_path / "start"
    start.write_text(f"echo read >>'{read}'\n")
    env = {
        "BASH_ENV": str(start),
        "ENV": str(start),
        "BASH_FUNC_rm%%": "() { echo no; }",
        "PYTHONPATH": str(tmp_path),
    }
    seen = seen_under([], runtime_name, base_image, LD_LIBRARY_PATH=str(libraries), **env)
    assert seen["codes"] == DEFAULT
    assert not [
        line
        for line in seen["env"].splitlines()
        if line.partition("=")[0] in (*env, "LD_LIBRARY_PATH")
    ]
    assert not read.exists()


@pytest.mark.parametrize("known", [False, True], ids=["new", "probed before"])
def test_namespaces_without_capabilities_are_one_sentence_with_the_next_step(
    runtime_name: str, base_image: str, tmp_path: Path, known: bool
) -> None:
    """As on Ubuntu 24.04; see the double."""
    if runtime_name not in ("apptainer", "bubblewrap", "charliecloud"):
        pytest.skip("Podman has a profile of its own there, and Docker needs no user namespace")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = (
        sys.executable,
        "-m",
        "hyperruntime",
        "--runtime",
        runtime_name,
        "exec",
        "--",
        "true",
    )
    if known:
        assert run_process(command, env=env).exit_code == 0
    done = run_process([sys.executable, no_capabilities.__file__, *command], env=env, timeout_s=120)
    assert done.exit_code == 3
    (said,) = done.stderr.decode().splitlines()
    assert re.search("uid_map( failed)?: Operation not permitted|write to uid_map", said)
    assert "kernel.apparmor_restrict_unprivileged_userns" in said
    assert next(tmp_path.glob(f"hyperruntime/{runtime_name}-*.json"), None) is None


def libm_of_this_machine() -> str:
    """Return the path of libm, which breaks programs that load it under the name of another
    library.
    """
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if "/libm" in line and ".so" in line)
