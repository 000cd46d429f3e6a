"""Docker: locations of the daemon, several users of one daemon, builds, GPUs by CDI name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import EngineUnavailableError, ImageBuildError
from hyperruntime.host.owner import LABEL, OwnerIdentity
from hyperruntime.host.process import run_process, wait_until
from hyperruntime_docker import DockerDriver
from hyperruntime_docker.args import UID_LABEL
from hyperruntime_docker.client import Engine
from hyperruntime_docker.trial import open_trial
from tests.doubles.slow_socket import slow_socket

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/hyperruntime-test/docker-busybox:latest"
SOCKET = "/var/run/docker.sock"


def docker(*args: str) -> str:
    result = run_process(["docker", *args])
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


def script(function: str) -> str:
    """Return what a function of the set-up scripts prints."""
    text = f"set -eu; . scripts/lib/common.sh; . scripts/lib/docker.sh; {function}"
    result = run_process(["bash", "-c", text], cwd=ROOT, timeout_s=200)
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode().strip()


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rootfs")
    (root / "bin").mkdir()
    shutil.copy(shutil.which("busybox") or "/bin/busybox", root / "bin/busybox")
    for applet in ("sh", "cat", "echo", "ls", "sleep", "true"):
        (root / "bin" / applet).symlink_to("busybox")
    with tarfile.open(root.parent / "rootfs.tar", "w") as tar:
        tar.add(root, ".")
    return root.parent / "rootfs.tar"


@pytest.fixture(scope="module")
def opened(rootfs: Path) -> Iterator[hr.Runtime]:
    """A runtime of this machine's daemon, with a tiny image."""
    with hr.open_runtime("docker") as runtime:
        if not runtime.images.exists(IMAGE):
            runtime.images._images.load_rootfs(rootfs, IMAGE)
        yield runtime


def test_a_stopped_daemon_is_an_error_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineUnavailableError, match=r"none\.sock.*systemctl start docker"):
        hr.open_runtime("docker")
    findings = DockerDriver().diagnose()
    assert [finding.ok for finding in findings] == [False]
    assert "dockerd" in findings[0].next_step


def test_the_current_context_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    endpoint = f"host=unix://{tmp_path}/elsewhere.sock"
    run_process(["docker", "context", "create", "mine", "--docker", endpoint]).stdout.decode()
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "mine"}))
    with pytest.raises(EngineUnavailableError, match=r"elsewhere\.sock"):
        hr.open_runtime("docker")


@pytest.mark.parametrize("how", ["by variable", "as the current one"])
def test_a_missing_context_is_an_error_and_no_other_daemon_is_used(
    opened: hr.Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    if how == "by variable":
        monkeypatch.setenv("DOCKER_CONTEXT", "nope")
    else:
        (tmp_path / "config.json").write_text(json.dumps({"currentContext": "nope"}))
    with pytest.raises(EngineUnavailableError, match="context"):
        DockerDriver().probe()
    assert any(found.ok is False for found in DockerDriver().diagnose())


def test_a_daemon_that_does_not_see_our_files_is_refused(
    opened: hr.Runtime, tmp_path: Path
) -> None:
    """A mount namespace hides TMPDIR from the daemon, as if the daemon ran on another machine."""
    program = "import hyperruntime as hr; hr.open_runtime('docker')"
    hidden = 'mount -t tmpfs none "$1" && TMPDIR=$1 XDG_CACHE_HOME=$1 exec "$2" -c "$3"'
    args = ["unshare", "--mount", "sh", "-c", hidden, "sh", str(tmp_path), sys.executable, program]
    result = run_process(args, cwd=tmp_path.parent)
    assert result.exit_code != 0
    assert f"does not see this machine's {tmp_path}" in result.error_text
    assert "docker context use default" in result.error_text
    # Another process may probe the same daemon at this moment.
    assert wait_until(
        lambda: "hyperruntime-probe" not in docker("ps", "--all") + docker("images"), 60, 0.5
    )


def test_a_daemon_behind_tcp_on_this_machine_works(
    opened: hr.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_socket(SOCKET) as relay:
        monkeypatch.setenv("DOCKER_HOST", relay.address)
        with (
            hr.open_runtime("docker") as runtime,
            runtime.container(hr.ContainerSpec(image=IMAGE)) as container,
        ):
            assert container.exec(["cat"], input=b"over tcp").stdout == b"over tcp"
            name = container.name
        assert name not in docker("ps", "--all")


def test_the_loss_of_the_daemon_is_reported(
    opened: hr.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container and its attached connection survive, as after a restart with `live-restore`."""
    spec = hr.ContainerSpec(image=IMAGE)
    with slow_socket(SOCKET) as relay:
        monkeypatch.setenv("DOCKER_HOST", relay.address)
        runtime = hr.open_runtime("docker")
        container = runtime.container(spec)
        runtime._driver._engine.close()  # type: ignore[attr-defined]
    for use in (
        lambda: runtime.container(spec),
        lambda: runtime.images.load(__file__),
        lambda: container.exec(["true"], user="65534"),
    ):
        with pytest.raises(
            EngineUnavailableError, match=r"no daemon answers at tcp://.*systemctl start docker"
        ):
            use()
    assert container.exec(["echo", "lives"]).stdout == b"lives\n"
    container.close()
    runtime.close()


@pytest.mark.parametrize("moment", ["read_text", "take_over"])
def test_the_next_probe_removes_what_a_killed_probe_left(opened: hr.Runtime, moment: str) -> None:
    code = f"""if True:
        import os
        from hyperruntime_docker import trial
        trial.{moment} = lambda *args: os.kill(os.getpid(), 9)
        with trial.open_trial(trial.Engine()) as killed:
            print(killed.image, flush=True)
            killed.limits()
    """
    result = run_process([sys.executable, "-c", code])
    assert result.exit_code == -signal.SIGKILL
    image = result.stdout.decode().strip()
    args = ("ps", "--all", "--quiet", "--filter", f"ancestor={image}")
    if moment == "read_text":  # the container was started
        assert wait_until(lambda: not docker(*args), 60, 0.1)
    assert docker("images", "--quiet", image)
    with open_trial(Engine()):
        pass
    assert not docker("ps", "--all", "--quiet", "--filter", f"ancestor={image}")
    assert not docker("images", "--quiet", image)


def hold(name: str, labels: Mapping[str, str]) -> None:
    """Run a container with these labels, which no process of ours owns."""
    words = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    docker(
        "run", "--detach", "--rm", "--network=none", "--name", name, *words, IMAGE, "sleep", "60"
    )


def test_prune_keeps_containers_of_other_users_of_the_daemon(opened: hr.Runtime) -> None:
    name = f"hyperruntime-test-{os.getpid()}"
    dead = attrs.evolve(OwnerIdentity.current(), pid=2**22 + 1).to_labels()
    names = {os.getuid() + 1: f"{name}-other", os.getuid(): f"{name}-ours"}
    try:
        for uid, each in names.items():
            hold(each, {**dead, UID_LABEL: str(uid)})
        removed = opened.prune()
        assert f"{name}-ours" in removed
        assert f"{name}-other" not in removed
        assert f"{name}-other" in docker("ps")
    finally:
        run_process(["docker", "rm", "--force", *names.values()])


def test_containers_of_a_dead_owner_are_removed_even_without_the_sdk(opened: hr.Runtime) -> None:
    name = f"hyperruntime-test-{os.getpid()}-left"
    hold(name, {LABEL: name})
    args = DockerDriver().cleanup_args(f"{LABEL}={name}")
    run_process(["/no/such/python" if word == sys.executable else word for word in args])
    assert name not in docker("ps", "--all")


@pytest.fixture(scope="module")
def newer(rootfs: Path) -> Iterator[hr.Runtime]:
    """A runtime of a second daemon that supports CDI and knows two devices, which are not GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        address = script("prepare_new_docker; echo $NEW_DOCKER_SOCKET")
        specs = Path(script("echo $NEW_DOCKER_CDI"))
        node = {"path": "/dev/nvidia0", "hostPath": "/dev/null"}
        devices = [
            {"name": name, "containerEdits": {"env": [f"DEVICE={name}"], "deviceNodes": [node]}}
            for name in ("0", "all")
        ]
        spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
        (specs / "test.json").write_text(
            json.dumps({**spec, "containerEdits": {"env": ["SHARED=by all"]}})
        )
        patch.setenv("DOCKER_HOST", f"unix://{address}")
        assert wait_until(
            lambda: b"nvidia.com/gpu=0" in run_process(["docker", "info"]).stdout, 60, 0.2
        )
        with hr.open_runtime("docker") as runtime:
            runtime.images._images.load_rootfs(rootfs, IMAGE)
            yield runtime
        (specs / "test.json").unlink()
        script("stop_new_docker")


@pytest.mark.parametrize(
    ("gpus", "name"), [("all", "all"), (("0",), "0"), (("nvidia.com/gpu=0",), "0")]
)
def test_a_device_by_cdi_name_and_its_environment_reach_every_exec(
    newer: hr.Runtime, gpus: str | tuple[str, ...], name: str
) -> None:
    assert newer.info.gpus
    spec = hr.ContainerSpec(image=IMAGE, gpus=gpus)
    with newer.container(spec) as container:
        for user in (None, "1234"):
            result = container.exec(
                ["sh", "-c", 'ls /dev/nvidia0; echo "$DEVICE $SHARED"'], user=user
            )
            assert result.stdout == f"/dev/nvidia0\n{name} by all\n".encode()


# What BuildKit's own tests and the Dockerfile reference show, and a few odd texts.
HEREDOCS = r"""FROM {image} AS first
ARG name=world
ENV QUOTED="two words"
RUN for name in awk chmod grep mkdir mktemp rm tr; do busybox ln -s busybox /bin/$name; done; mkdir -p /tmp /dest
WORKDIR /dest
COPY <<EOF <<EOF2 double/
first file '${{name}}' "$QUOTED" \$name \x ${{name:+set}} ${{name:-unset}} $1$$ $ (
\
EOF
# second $name
EOF2
COPY --chmod=0751 <<-'RAW' raw
	'${{name}}' \
	RAW
RUN <<EOF
printf '%s\n' "${{name}} 100%% 'a'" "$QUOTED" > ran
EOF
RUN <<EOF
#!/bin/awk -f
BEGIN {{ print "he	llo" > "/dest/shebang" }}
EOF
RUN <<-EOF
	#!/bin/false
	echo 'a shell runs it' > tabbed
EOF
RUN cat <<EOF1 | tr a-z A-Z > out1; \
	cat <<'EOF2' > out2
hello $name
EOF1
$name
EOF2
RUN <<EOF 3<<IN1 awk -f -
BEGIN {{ while ((getline line < "/proc/self/fd/3") > 0) print toupper(line) > "fd3" }}
EOF
hello
IN1
FROM first
COPY <<file.txt .
inherited $name $QUOTED
file.txt
"""


@pytest.mark.slow
def test_translated_here_documents_do_what_buildkit_does(
    newer: hr.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"cliPluginsExtraDirs": [script("echo $NEW_DOCKER_PLUGINS")]})
    )
    (tmp_path / "Dockerfile").write_text(HEREDOCS.format(image=IMAGE))
    show = "cd /dest && grep -r '' . | busybox sort; busybox stat -c '%n %a %u' * double/*"
    found: list[str] = []
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for builder in ("BuildKit", "classic"):
        if builder == "classic":
            monkeypatch.setattr("hyperruntime_docker.images.has_buildkit", lambda version: False)
        lines: list[str] = []
        newer.images.build(
            "localhost/hyperruntime-test/heredocs:1",
            containerfile=tmp_path / "Dockerfile",
            build_args={"name": "me"},
            force=True,
            on_output=lines.append,
        )
        assert any("[internal]" in line for line in lines) is (builder == "BuildKit")
        with newer.container(
            hr.ContainerSpec(image="localhost/hyperruntime-test/heredocs:1")
        ) as container:
            found.append(container.exec(["sh", "-c", show]).check().stdout.decode())
        newer.images.remove("localhost/hyperruntime-test/heredocs:1")
    assert found[0] == found[1]
    assert "./tabbed:a shell runs it\n" in found[0]
    assert "./double/EOF:first file 'me' \"two words\" $name x set me  $ (\n" in found[0]


@pytest.mark.slow
def test_buildkit_names_the_failed_step(
    newer: hr.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"cliPluginsExtraDirs": [script("echo $NEW_DOCKER_PLUGINS")]})
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "Dockerfile").write_text(
        f"FROM {IMAGE}\nRUN echo fine\nRUN <<EOF\necho the reason >&2\nexit 9\nEOF\n"
    )
    with pytest.raises(
        ImageBuildError, match=r"(?s)step `RUN <<EOF .*failed.*\n +the reason\n"
    ) as caught:
        newer.images.build("localhost/x:1", containerfile=tmp_path / "Dockerfile", force=True)
    assert "fine" not in str(caught.value)
