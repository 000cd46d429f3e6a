"""``hyperrun doctor --gpu IMAGE`` names the step that prevents the use of a GPU in a container."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.cli import main
from tests.doubles.nvidia_smi import install_smi

pytestmark = pytest.mark.engine

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
Examine = Callable[..., tuple[int, dict[str, tuple[object, str]]]]
Make = Callable[..., None]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that installs an ``nvidia-smi`` script and, if files are given, a CDI spec
    that mounts them.
    """
    (tmp_path / "cdi").mkdir()
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", str(tmp_path / "cdi"))

    def make(smi: str, files: dict[str, str] | None = None, kind: str = "nvidia.com/gpu") -> None:
        install_smi(monkeypatch, tmp_path, smi)
        mounts = []
        for number, (path, text) in enumerate((files or {}).items()):
            source = tmp_path / f"file {number}"
            source.write_text(text)
            source.chmod(0o755)
            mounts.append(
                {"hostPath": str(source), "containerPath": path, "options": ["ro", "rbind"]}
            )
        edits = {
            "mounts": mounts,
            "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}],
        }
        spec = {
            "cdiVersion": "0.5.0",
            "kind": kind,
            "devices": [{"name": "all", "containerEdits": edits}],
        }
        if files is not None:
            (tmp_path / "cdi/spec.json").write_text(json.dumps(spec))

    return make


@pytest.fixture
def examine(base_image: str, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Return a function that runs the command and returns its exit code, and the result and text of
    each step.
    """

    def run(*args: str) -> tuple[int, dict[str, tuple[object, str]]]:
        code = main(["doctor", "--gpu", base_image, "--json", *args])
        report = json.loads(capsys.readouterr().out)
        assert report["works"] is (code == 0)
        return code, {
            step["subject"]: (step["ok"], step["detail"] + step["next_step"])
            for step in report["findings"]
        }

    return run


SMI = 'case $1 in -L) echo "GPU 0: Fake";; *) echo "0, GPU-fake, 0, 1000, 0, 550.1, Fake";; esac'


def test_a_failing_driver_on_the_host_is_the_only_step(host: Make, examine: Examine) -> None:
    host("echo 'NVIDIA-SMI has failed'; exit 9")
    code, steps = examine()
    assert code == 1
    assert steps == {
        "host: nvidia-smi": (
            False,
            "nvidia-smi failed with exit code 9: NVIDIA-SMI has failedsee `nvidia-smi` and `dmesg`",
        )
    }


def test_without_a_cdi_spec_the_container_fails_and_the_spec_is_the_next_step(
    host: Make, examine: Examine
) -> None:
    host(SMI)
    code, steps = examine()
    assert code == 1
    assert list(steps) == ["host: nvidia-smi", "host: CDI spec", "engine", "container"]
    assert steps["host: nvidia-smi"] == (True, "driver 550.1, 0: Fake")
    assert steps["host: CDI spec"][0] is None
    assert "nvidia-ctk cdi generate" in steps["host: CDI spec"][1]
    assert steps["container"][0] is False


def test_a_spec_without_the_library_fails_at_the_library(host: Make, examine: Examine) -> None:
    host(SMI, files={})
    code, steps = examine()
    assert code == 1
    assert steps["inside: device nodes"] == (True, "/dev/nvidia0")
    assert list(steps)[-1] == "inside: libcuda.so.1"
    assert steps["inside: libcuda.so.1"][0] is False
    assert "the CDI spec is out of date" in steps["inside: libcuda.so.1"][1]


def test_different_driver_versions_fail_at_nvidia_smi(host: Make, examine: Examine) -> None:
    host(
        SMI,
        files={LIBRARY: "", "/usr/bin/nvidia-smi": "#!/bin/sh\necho 'version mismatch'; exit 18\n"},
    )
    code, steps = examine()
    assert code == 1
    assert steps["inside: libcuda.so.1"] == (True, LIBRARY)
    assert steps["inside: nvidia-smi"][0] is False
    assert "version mismatch" in steps["inside: nvidia-smi"][1]


def test_the_exit_code_is_0_if_every_step_works(host: Make, examine: Examine) -> None:
    host(SMI, files={LIBRARY: "", "/usr/bin/nvidia-smi": f"#!/bin/sh\n{SMI}\n"})
    code, steps = examine()
    assert code == 0
    assert steps["inside: nvidia-smi"] == (True, "GPU 0: Fake")
    assert steps["inside: torch"] == (None, "not in this image")


TORCH = """
import types, sys
__version__, version = "9.9", types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(is_available=lambda: False)
"""


def test_the_torch_step_fails_if_torch_sees_no_gpu(host: Make, examine: Examine) -> None:
    smi = f"#!/bin/sh\n{SMI}\n"
    host(
        SMI,
        files={
            LIBRARY: "",
            "/usr/bin/nvidia-smi": smi,
            "/usr/lib/python3/dist-packages/torch.py": TORCH,
        },
    )
    code, steps = examine()
    assert code == 1
    assert "torch 9.9 (CUDA 13.0) sees no GPU" in steps["inside: torch"][1]


def test_gpus_of_another_vendor_are_checked_as_far_as_possible(
    host: Make, examine: Examine
) -> None:
    host("exit 9", files={}, kind="example.com/gpu")
    code, steps = examine("--gpus", "example.com/gpu=all")
    assert code == 0
    assert steps["inside: device nodes"][0] is True
    assert steps["inside: driver"][0] is None


def test_the_container_step_fails_if_the_image_is_missing(
    host: Make, examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    host(SMI, files={})
    code = main(["doctor", "--gpu", "localhost/no-such-image:1"])
    out = capsys.readouterr().out
    assert code == 1
    assert "FAIL  container: image 'localhost/no-such-image:1' is not on this machine" in out
