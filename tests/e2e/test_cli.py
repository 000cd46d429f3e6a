"""The installed ``hyperrun`` in a separate process, on real Podman."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.agents import copy_template
from hyperruntime.host.owner import NODE_VARIABLE, OwnerIdentity
from tests.command import hyperrun, program
from tests.doubles.upstream import chat, scripted_upstream
from tests.params import first_quick

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

EVERY_BYTE = bytes(range(256)) * 32_000 + b"\xff\xfe no newline at the end"
SLEEPER = (
    "import sys, time, hyperruntime as hr\n"
    "runtime = hr.open_runtime('podman', run_id='sleeper')\n"
    "container = runtime.container(hr.ContainerSpec(image=sys.argv[1]))\n"
    "print(container.name, flush=True)\n"
    "time.sleep(300)\n"
)


def told(*args: str) -> Any:
    """Return the JSON that a command prints."""
    done = hyperrun(*args, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.fixture
def sleeper(base_image: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield another process that owns a container, as on a cluster's node, and the container's
    name.
    """
    args = [sys.executable, "-c", SLEEPER, base_image]
    env = {**os.environ, NODE_VARIABLE: "n7"}
    process = subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    name = process.stdout.readline().decode().strip()
    assert name
    yield process, name
    process.kill()
    process.wait()
    process.stdout.close()


def test_exec_passes_both_streams_through_separate_and_unchanged() -> None:
    code = (
        "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()); "
        "sys.stderr.buffer.write(bytes(range(256)))"
    )
    done = hyperrun("exec", "--", "python3", "-c", code, data=EVERY_BYTE)
    assert done.returncode == 0
    assert done.stdout == EVERY_BYTE
    assert done.stderr == bytes(range(256))


def test_exec_ends_with_124_at_its_timeout() -> None:
    started = time.monotonic()
    done = hyperrun(
        "exec", "--timeout=5s", "--", "sh", "-c", "trap '' TERM; echo begun; sleep 600 & sleep 600"
    )
    assert done.returncode == 124
    assert done.stdout == b"begun\n"
    assert b"ended after 5.0s" in done.stderr
    assert time.monotonic() - started < 60


def test_exec_does_not_wait_for_an_idle_standard_input() -> None:
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [program(), "exec", "--", "echo", "hi"], stdin=reader, capture_output=True, timeout=60
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"hi\n")


def test_exec_runs_without_a_standard_input() -> None:
    script = f'exec "{program()}" exec -- cat <&-'
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_exec_ends_when_the_reader_closes_its_output() -> None:
    process = subprocess.Popen(
        [program(), "exec", "--", "yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_exec_leaves_no_container(number: signal.Signals, code: int) -> None:
    args = [program(), "exec", "--", "sh", "-c", "echo up; exec sleep 600"]
    process = subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    # after the ^C of a terminal
    assert err.decode().split("\n") == ["", "hyperrun: interrupted", ""]
    assert not [row for row in told("ps") if row["owner_pid"] == process.pid]


def test_exec_gives_a_command_access_to_models(tmp_path: Path) -> None:
    ask = (
        "import json, os, urllib.request as u\nbody = json.dumps({'model': 'gpt-4o', "
        "'messages': []}).encode()\nheaders = {'Authorization': 'Bearer ' + "
        "os.environ['OPENAI_API_KEY']}\nurl = os.environ['OPENAI_BASE_URL'] + "
        "'/chat/completions'\nprint(json.load(u.urlopen(u.Request(url, body, "
        "headers)))['choices'][0]['message']['content'])\n"
    )
    with scripted_upstream(lambda _: chat("hello")) as upstream:
        config = tmp_path / "run.toml"
        models = "[{name = 'gpt-*', upstream = 'u'}]"
        config.write_text(
            f"[gateway]\nupstreams = [{{name = 'u', url = '{upstream.url}', key_env = "
            f"'SECRET'}}]\nmodels = {models}\nbudget = {{requests = 2}}\n"
        )
        args = ("exec", "--gateway", str(config), "--", "python3", "-c")
        done = hyperrun(*args, ask, env={"SECRET": "sk-secret"})
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr.decode()
        assert upstream.received[0].headers["authorization"] == "Bearer sk-secret"
        done = hyperrun(*args, ask * 3, env={"SECRET": "sk-secret"})
        assert (done.returncode, done.stdout) == (1, b"hello\nhello\n")
        assert b"2 of 2 requests" in done.stderr
        assert b"set SECRET" in hyperrun(*args, ask, env={"SECRET": ""}).stderr


def test_exec_options_describe_the_container(tmp_path: Path, runtime: hr.Runtime) -> None:
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "in").write_text("from the host")
    script = (
        "pwd; id -u; echo $GREETING; cat in; touch /new 2>/dev/null || echo read-only; "
        "echo x 2>/dev/null >out || echo mount read-only; echo done >/out/file"
    )
    (tmp_path / "out").mkdir()
    options = (
        "--mount",
        "with space:/data",
        "--mount",
        "out:/out:rw",
        "--workdir",
        "/data",
        "--env",
        "GREETING=a b=c",
        "--env",
        "FROM_HERE",
    )
    wanted = {
        "memory_bytes": ("--memory", "256m"),
        "cpus": ("--cpus", "1.5"),
        "pids": ("--pids", "64"),
    }
    possible = [
        words for field, words in wanted.items() if runtime.info.limits.get(field) == "cgroup"
    ]
    more = ("--read-only", "--network", "none", *(word for words in possible for word in words))
    done = hyperrun("exec", *options, *more, "--", "sh", "-c", script + "; echo $FROM_HERE", cwd=tmp_path,
                    env={"FROM_HERE": "ours"})  # fmt: skip
    expected = ["/data", "0", "a b=c", "from the hostread-only", "mount read-only", "ours"]
    assert done.stdout.decode().splitlines() == expected, done.stderr
    assert not (tmp_path / "with space" / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "done\n"
    done = hyperrun("exec", "--user", "1000", "--", "id", "-u")
    assert done.stdout == b"1000\n"


def test_exec_ends_a_container_whose_files_exceed_the_disk_limit() -> None:
    done = hyperrun(
        "exec", "--disk=20m", "--", "sh", "-c", "head -c 200000000 /dev/zero >/var/tmp/x; sleep 100"
    )
    assert done.returncode == 1
    assert b"its files took" in done.stderr


def test_exec_copies_files_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(EVERY_BYTE)
    done = hyperrun(
        "exec",
        "--put",
        "in:/tmp/a",
        "--get",
        "/tmp/b:out",
        "--",
        "cp",
        "/tmp/a",
        "/tmp/b",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == EVERY_BYTE
    done = hyperrun("exec", "--get", "/tmp/b:never", "--", "sh", "-c", "exit 9", cwd=tmp_path)
    assert done.returncode == 9
    assert b"no such file" in done.stderr
    assert hyperrun("exec", "--get", "/tmp/b:never", "--", "true", cwd=tmp_path).returncode == 1
    evil = 'printf "%s\\n" "#!/bin/sh" "exec sleep 9405" >/tmp/tar && chmod 755 /tmp/tar'
    get = ("--env", "PATH=/tmp:/usr/bin:/bin", "--get", "/etc:never", "--copy-timeout", "1s")
    done = hyperrun("exec", *get, "--", "sh", "-c", evil, cwd=tmp_path)
    assert done.returncode == 1
    assert b"'/etc' was not copied out of the container to 'never' within 1.0s" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    first_quick(
        (
            ("exec", "--image", "localhost/no/such:1", "--", "true"),
            2,
            b"image build localhost/no/such:1 --file",
        ),
        (("exec", "--workdir", "/no/such", "--", "true"), 2, b"/no/such"),
        (
            ("image", "save", "localhost/no/such:1", "/tmp/x.tar"),
            2,
            b"`hyperrun image list` shows what there is",
        ),
        (("image", "build", "bse"), 2, b"did you mean 'base'?"),
        (("exec", "--user", "nobody-like-that", "--", "true"), 2, b"user"),
        (("image", "load", "/no/such"), 2, b"podman save"),
        quick=4,
    ),
)
def test_invalid_input_is_reported_in_one_sentence(
    args: tuple[str, ...], code: int, sentence: bytes
) -> None:
    done = hyperrun(*args)
    assert done.returncode == code, done.stderr
    assert done.stdout == b""
    assert done.stderr.startswith(b"hyperrun: error: ")
    assert sentence in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_ps_shows_containers_of_another_process(
    sleeper: tuple[subprocess.Popen[bytes], str], base_image: str
) -> None:
    process, name = sleeper
    row = next(row for row in told("ps") if row["name"] == name)
    assert (row["owner_pid"], row["owner_state"], row["state"], row["image"], row["run"]) == (
        process.pid, "alive", "running", base_image, "sleeper",
    )  # fmt: skip
    assert (row["node"], 0 <= row["age_s"] < 120) == ("n7", True)
    table = hyperrun("ps").stdout.decode()
    assert table.startswith("NAME")
    assert "n7" in next(line for line in table.splitlines() if name in line).split()


def test_prune_removes_the_directory_of_a_dead_owner_and_reports_it() -> None:
    with tempfile.TemporaryDirectory(prefix="hr-") as directory:
        left = Path(directory, f"hyperruntime-{os.getuid()}-test-left")
        left.mkdir()
        owner = attrs.asdict(OwnerIdentity.current()) | {"pid": 2**22 + 1}
        (left / "owner.json").write_text(json.dumps(owner))
        done = hyperrun("prune", env={"TMPDIR": directory})
        assert done.returncode == 0, done.stderr
        assert f"removed {left} (podman)" in done.stdout.decode()
        assert not left.exists()


@pytest.mark.slow
def test_image_list_names_the_base_image(base_image: str, runtime: hr.Runtime) -> None:
    rows = told("image", "list")
    base = next(row for row in rows if base_image in row["references"])
    assert base["size_bytes"] > 1024**2
    assert base_image in hyperrun("image", "list").stdout.decode()
    done = hyperrun("image", "bootstrap")
    assert (done.returncode, done.stdout.decode().strip()) == (0, base_image)


def test_runtimes_and_doctor_find_podman() -> None:
    row = next(row for row in told("runtimes") if row["runtime"] == "podman")
    assert row["usable"]
    assert row["version"]
    assert row["networks"]
    assert row["rootless"] == (os.getuid() != 0)
    report = told("doctor")
    assert report["usable"][0] == "podman"
    assert all(
        set(found) == {"subject", "ok", "detail", "next_step"}
        for found in report["findings"]["podman"]
    )
    done = hyperrun("doctor", "podman")
    assert done.returncode == 0
    assert b"containers run here with: podman\n" in done.stdout


def test_help_imports_no_sdk() -> None:
    env = {"PYTHONPROFILEIMPORTTIME": "1"}
    done = hyperrun("--help", env=env)
    assert done.returncode == 0
    loaded = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
    assert "click" in loaded
    assert not loaded & {
        "rich",
        "podman",
        "stevedore",
        "asyncio",
        "structlog",
        "requests",
        "attr",
        "subprocess",
    }


@pytest.mark.slow
def test_a_run_of_the_current_directory_is_resumed_with_more_generations(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    copy_template("mutator", agent)
    with open(agent / "hyperrun.toml", "a") as file:
        file.write(
            '\n[generate]\nmax-generation = 1\nseed = 3\nrun-id = "x"\noutput-dir-parent = '
            '"../runs"\n'
        )
    for args in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *args], cwd=agent, check=True)
    refused = hyperrun("--runtime", "podman", cwd=agent)
    assert refused.returncode == 2
    assert (
        b"`hyperrun --runtime podman generate --agent . --config hyperrun.toml`" in refused.stderr
    )
    words = ["--runtime", "podman", "generate", "--agent", ".", "--config", "hyperrun.toml"]
    done = hyperrun(*words, cwd=agent)
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "runs" / "generate_x"
    assert b"generation 1: score " in done.stderr
    assert done.stdout.decode().splitlines()[1].startswith("initial")
    assert hyperrun(*words, cwd=agent).returncode == 2  # the run exists already
    summary = told("resume", str(run_dir), "--max-generation", "2")
    assert [item["current_genid"] for item in summary["generations"]] == ["initial", 1, 2]
    assert not summary["interrupted"]
    assert told("status", str(run_dir))["state"] == "finished"


def test_demo_prints_a_table_and_the_next_command_and_writes_pictures(tmp_path: Path) -> None:
    done = hyperrun("demo", "--generations", "1", "--output", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = done.stdout.decode()
    assert out.split()[:7] == ["GENERATION", "PARENT", "SCORE", "TRAIN", "VAL", "SUM", "N26"]
    assert "the score went from " in out
    report = next((tmp_path / "runs").glob("generate_*/report"))
    names = {path.name for path in report.iterdir()}
    assert names == {
        f"{name}.{kind}"
        for name in ("lineage", "best_circle_packing_n26", "best_circle_packing_n32")
        for kind in ("svg", "png")
    }
    assert f"hyperrun resume {report.parent.relative_to(tmp_path)} --max-generation 11" in out
    assert (tmp_path / out.split("a patch: less ")[1].strip()).is_file()
