"""``hyperrun doctor --gpu IMAGE``: check GPU access step by step, from the host's driver to torch
in the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hyperruntime.cli.command import State
from hyperruntime.container import Container
from hyperruntime.driver import Finding
from hyperruntime.errors import DeviceNotFoundError, HyperRuntimeError
from hyperruntime.gpu.devices import GENERATE, load_devices, merge_edits
from hyperruntime.gpu.grant import NVIDIA_KIND, gpu_devices
from hyperruntime.gpu.nvidia import NO_DRIVER, list_gpus
from hyperruntime.images.recipes import image_reference
from hyperruntime.spec import ContainerSpec, ExecResult

_TIMEOUT_S = 120.0
_NODES = 'for path in /dev/nvidia* /dev/dri/* "$@"; do [ -e "$path" ] && echo "$path"; done; exit 0'
# Without ldconfig, which small images do not have.
_LIBRARY = r"""
set -f; IFS=:
for place in $LD_LIBRARY_PATH /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib /usr/local/lib \
    /usr/local/cuda/compat /usr/local/nvidia/lib64 /.singularity.d/libs; do
    [ -e "$place/libcuda.so.1" ] && echo "$place/libcuda.so.1" && exit
done
exit 1
"""
_TORCH = """
import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(3)
import torch
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU")
x = torch.ones(256, 256, device="cuda")
assert float((x @ x).sum()) == 256.0 ** 3
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name(0)}: product is correct")
"""
Steps = Iterator[Finding]


def gpu_findings(state: State, image: str, gpus: str | tuple[str, ...]) -> Steps:
    """Yield the finding of each step; after a failure the next steps say nothing new.

    Args:
        state: the global options.
        image: recipe name or image reference.
        gpus: as in ``ContainerSpec.gpus``.
    """
    image, nvidia = image_reference(image), _is_nvidia(gpus)
    if nvidia:
        yield _host_driver()
    described, nodes = _cdi(gpus)
    yield described
    try:
        spec = ContainerSpec(image=image, gpus=gpus)
        with state.open_runtime() as runtime:
            yield Finding(
                subject="engine", ok=True, detail=f"{runtime.info.engine} {runtime.info.version}"
            )
            with runtime.container(spec) as container:
                yield from _inside(container, nodes, nvidia=nvidia)
    except HyperRuntimeError as error:
        yield Finding(subject="container", ok=False, detail=str(error))


def _is_nvidia(gpus: str | tuple[str, ...]) -> bool:
    """Return whether NVIDIA GPUs are requested; a name without a vendor means NVIDIA."""
    return isinstance(gpus, str) or any(
        "=" not in name or name.startswith(f"{NVIDIA_KIND}=") for name in gpus
    )


def _host_driver() -> Finding:
    try:
        gpus = list_gpus()
    except HyperRuntimeError as error:
        text, _, step = str(error).partition("; ")
        return Finding(subject="host: nvidia-smi", ok=False, detail=text, next_step=step)
    if not gpus:
        return Finding(
            subject="host: nvidia-smi", ok=False, detail="it lists no GPU", next_step=NO_DRIVER
        )
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus)
    return Finding(subject="host: nvidia-smi", ok=True, detail=f"driver {gpus[0].driver}, {names}")


def _cdi(gpus: str | tuple[str, ...]) -> tuple[Finding, Sequence[str]]:
    """Return the finding about CDI, and the paths of the described device nodes.

    A missing device is only a note: some engines do not need CDI.
    """
    registry = load_devices()
    if isinstance(gpus, str) and gpus.startswith("auto"):
        gpus = "all"
    try:
        devices = gpu_devices(gpus, registry)
    except DeviceNotFoundError as error:
        # if it matters, the start fails
        return Finding(subject="host: CDI spec", ok=None, detail=str(error)), ()
    broken = "".join(f"; {finding.subject} {finding.detail}" for finding in registry.findings)
    files = ", ".join(dict.fromkeys(str(device.file) for device in devices))
    detail = f"{', '.join(device.name for device in devices)} in {files}{broken}"
    nodes = [node.path for node in merge_edits(devices).device_nodes]
    return Finding(subject="host: CDI spec", ok=True, detail=detail), nodes


def _inside(container: Container, expected: Sequence[str], *, nvidia: bool) -> Steps:
    """Yield the findings inside a started container; its start has already checked that the devices
    are visible.
    """
    nodes = _run(container, ["/bin/sh", "-c", _NODES, "nodes", *expected])
    detail = ", ".join(dict.fromkeys(_one_line(nodes.stdout).split())) or "none"
    yield Finding(subject="inside: device nodes", ok=detail != "none", detail=detail)
    if not nvidia:
        yield Finding(
            subject="inside: driver", ok=None, detail="not checked: these are not NVIDIA GPUs"
        )
        return
    yield _report(
        "inside: libcuda.so.1",
        _run(container, ["/bin/sh", "-c", _LIBRARY]),
        f"the driver's libraries are not mounted, so the CDI spec is out of date: {GENERATE}",
    )
    yield _report(
        "inside: nvidia-smi",
        _run(container, ["nvidia-smi", "-L"]),
        "host and container must have the same driver: generate the CDI spec again after a "
        "driver update",
    )
    torch = _run(container, ["python3", "-c", _TORCH])
    if torch.exit_code == 3 or torch.not_executed:
        yield Finding(subject="inside: torch", ok=None, detail="not in this image")
    else:
        yield _report(
            "inside: torch", torch, "the image needs a torch whose CUDA the driver supports"
        )


def _run(container: Container, args: Sequence[str]) -> ExecResult:
    return container.exec(args, timeout_s=_TIMEOUT_S, workdir="/")


def _report(subject: str, result: ExecResult, next_step: str) -> Finding:
    out = _one_line(result.stdout)
    if result.exit_code == 0:
        return Finding(subject=subject, ok=True, detail=out)
    why = _one_line(result.stderr) or out or f"exit code {result.exit_code}"
    return Finding(subject=subject, ok=False, detail=f"fails: {why[-400:]}", next_step=next_step)


def _one_line(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())
