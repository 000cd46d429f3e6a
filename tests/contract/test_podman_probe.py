"""The result of the probe of Podman is cached, and replaced if it is unreadable, invalid or
wrong.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime_podman.driver import PodmanDriver
from hyperruntime_podman.probe import cached_probe, probe, probe_file

pytestmark = pytest.mark.engine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: hr.Runtime) -> Path:
    """The file of a correct probe result, in its own cache directory."""
    honest = json.dumps(remembered(runtime))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = probe_file().path
    path.parent.mkdir(parents=True)
    path.write_text(honest)
    assert cached_probe()[1]
    return path


def remembered(runtime: hr.Runtime) -> dict[str, object]:
    driver = runtime._driver
    assert isinstance(driver, PodmanDriver)
    return attrs.asdict(driver._probe.get())


def test_a_probe_cache_with_which_no_container_starts_is_replaced_at_once(
    cache: Path, base_image: str
) -> None:
    wrong = json.loads(cache.read_bytes())
    wrong["settings"]["oci_runtime"] = "no-such-runtime"
    cache.write_text(json.dumps(wrong))
    with (
        hr.open_runtime("podman") as opened,
        opened.container(hr.ContainerSpec(image=base_image)) as started,
    ):
        assert started.exec(["echo", "works"]).stdout == b"works\n"
        assert opened.info.oci_runtime != "no-such-runtime"
    assert json.loads(cache.read_bytes())["settings"]["oci_runtime"] != "no-such-runtime"


@pytest.mark.parametrize("default_runtime", ["of the machine", "fails"])
def test_a_moment_in_which_no_container_starts_does_not_make_the_result_worse(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_runtime: str
) -> None:
    if default_runtime == "fails":
        monkeypatch.setenv("CONTAINERS_CONF", str(failing_default(tmp_path)))
    honest = probe()
    assert bool(honest.tried) >= (default_runtime == "fails")
    most = len(honest.tried) + 1  # also the combination that works
    (shims := tmp_path / "bin").mkdir()
    (shim := shims / "podman").write_text(
        f'#!/bin/sh\nPATH={os.environ["PATH"]}\nif [ "$1" = info ]; then exec podman "$@"; fi\n'
        f'echo run >>{tmp_path}/runs\nif [ "$(grep -c run {tmp_path}/runs)" -gt {most} ]; then exec podman "$@"; fi\n'
        "echo disk quota exceeded >&2\nexit 126\n"
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:{os.environ['PATH']}")
    found, was_remembered = cached_probe()
    assert not was_remembered
    assert found.settings == honest.settings
    assert [combination for combination, _ in found.tried] == [
        combination for combination, _ in honest.tried
    ]
    assert not [reason for _, reason in found.tried if "disk quota" in reason], (
        "the reasons are of the last try"
    )


def failing_default(directory: Path) -> Path:
    """Return a configuration whose default OCI runtime fails, as crun does beside cgroups of both
    versions.
    """
    (program := directory / "failing").write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo failing 1.0; exit; fi\n'
        "echo cgroups in hybrid mode not supported >&2\nexit 1\n"
    )
    program.chmod(0o755)
    (path := directory / "containers.conf").write_text(
        f'[engine]\nruntime = "failing"\n[engine.runtimes]\nfailing = ["{program}"]\n'
    )
    return path


def test_a_process_with_lower_limits_does_not_use_the_cached_limits(
    cache: Path, base_image: str
) -> None:
    script = """
        import sys
        import hyperruntime as hr
        with hr.open_runtime("podman") as opened, opened.container(hr.ContainerSpec(image=sys.argv[1])) as started:
            print(started.exec(["sh", "-c", "ulimit -Hn"]).stdout.decode())
            print(opened._driver._probe.get().settings.nofile)
    """
    before, command = cached_probe(), 'ulimit -n 777; exec "$@"'
    args = [
        "/bin/sh",
        "-c",
        command,
        "sh",
        sys.executable,
        "-c",
        textwrap.dedent(script),
        base_image,
    ]
    done = run_process(args, timeout_s=120)
    assert done.exit_code == 0, done.stderr.decode()
    inside, known = map(int, done.stdout.split())
    assert inside <= 777
    assert known <= 777
    assert cached_probe() == before, "it replaced the cached result of other processes"


def test_prune_removes_everything_that_a_killed_probe_left(tmp_path: Path) -> None:
    shim = tmp_path / "podman"
    shim.write_text(
        '#!/bin/sh\ncase "$1" in info) echo "4.0 overlay";; *) kill -9 "$PPID";; esac\n'
    )
    shim.chmod(0o755)
    runtime_dir = tmp_path / "r"
    runtime_dir.mkdir()
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    script = "from hyperruntime_podman.probe import probe; probe()"
    killed = run_process([sys.executable, "-c", script], env={**os.environ, **env}, timeout_s=60)
    assert killed.exit_code == -9
    listing = (
        "from hyperruntime.host.owner import stale_directories; print(*stale_directories(), "
        "sep='\\n')"
    )
    stale = (
        run_process([sys.executable, "-c", listing], env={**os.environ, **env})
        .stdout.decode()
        .split()
    )
    left = [path for path in stale if Path(path, "rootfs").is_dir()]
    assert left
    with hr.open_runtime("podman") as opened:
        assert set(left) <= set(opened.prune())
    assert not [path for path in left if os.path.exists(path)]


def diagnose_in(env: dict[str, str]) -> ProcessResult:
    """Run the diagnosis; if this process is root, run it as a user without an account."""
    script = """
        import os
        from hyperruntime_podman import PodmanDriver
        if os.geteuid() == 0:
            import hyperruntime_podman.diagnosis, hyperruntime_podman.probe
            os.setgid(54321), os.setuid(54321)
        for finding in PodmanDriver().diagnose():
            print(finding.subject, finding.ok, finding.next_step, sep="|")
    """
    return run_process(
        [sys.executable, "-c", textwrap.dedent(script)], env=env, timeout_s=120, cwd="/"
    )


def test_a_diagnosis_never_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = os.environ["PATH"]
    for env in (
        {
            "PATH": path,
            "HOME": "/nonexistent",
            "XDG_CACHE_HOME": str(tmp_path / "file"),
            "TMPDIR": "/nonexistent",
        },
        {"PATH": path},
        {"PATH": str(tmp_path)},
    ):
        done = diagnose_in(env)
        assert done.exit_code == 0, done.stderr.decode()
        assert "podman|" in done.stdout.decode()
    assert "install it" in diagnose_in({"PATH": str(tmp_path)}).stdout.decode()
