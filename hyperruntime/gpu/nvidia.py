"""List this machine's GPUs with ``nvidia-smi``."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs

from hyperruntime.errors import DeviceError
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.process import find_program, run_process

PROGRAM = "nvidia-smi"
NO_DRIVER = (
    "nvidia-smi is not on PATH, so this machine has no NVIDIA driver or no GPU; install the "
    "driver, or use a machine with a GPU (under Slurm: `srun --gres=gpu:1 ...`)"
)
_FIELDS = (
    "index",
    "uuid",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "driver_version",
    "name",
)


@attrs.frozen(kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        index: index in nvidia-smi.
        uuid: permanent identifier.
        memory_used_mib: memory in use by all processes, in MiB; 0 if unknown.
        memory_total_mib: total memory, in MiB; 0 if unknown.
        utilization: utilization in per cent; 0 if unknown.
        driver: version of the NVIDIA driver.
        name: name of the product.
    """

    index: str
    uuid: str
    memory_used_mib: int
    memory_total_mib: int
    utilization: int
    driver: str
    name: str

    @property
    def load(self) -> tuple[float, int, int]:
        """The sort key that puts the least used GPU first."""
        return (
            self.memory_used_mib / max(1, self.memory_total_mib),
            self.utilization,
            int(self.index),
        )


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that ``nvidia-smi`` lists.

    Raises:
        DeviceError: ``nvidia-smi`` is missing or fails.
    """
    program = find_program(PROGRAM)
    if program is None:
        raise DeviceError(NO_DRIVER)
    query = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        result = run_process(query, timeout_s=limit_s("", "program"))
    except (OSError, TimeoutError) as error:
        raise DeviceError(
            f"nvidia-smi cannot be run: {error}; see `nvidia-smi` and `dmesg`"
        ) from error
    if result.exit_code != 0:
        words = " ".join((result.stdout + result.stderr).decode(errors="replace").split())[-300:]
        raise DeviceError(
            f"nvidia-smi failed with exit code {result.exit_code}: {words}; see `nvidia-smi` "
            "and `dmesg`"
        )
    return parse_gpus(result.stdout.decode(errors="replace"))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the output of nvidia-smi; invalid lines are skipped."""
    rows = (
        [cell.strip() for cell in line.split(",", len(_FIELDS) - 1)] for line in text.splitlines()
    )
    return tuple(_gpu(row) for row in rows if len(row) == len(_FIELDS) and _is_number(row[0]))


def only_allowed(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` allows; a job scheduler may set it.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in text.split(",")):
        matches = [gpu for gpu in gpus if word and (word == gpu.index or gpu.uuid.startswith(word))]
        if len(matches) != 1:  # as in CUDA: an invalid name ends the list
            break
        chosen += [gpu for gpu in matches if gpu not in chosen]
    return tuple(chosen)


def _gpu(row: Sequence[str]) -> Gpu:
    index, uuid, used, total, utilization, driver, name = row
    return Gpu(
        index=index,
        uuid=uuid.replace("/", "_"),
        memory_used_mib=_number(used),
        memory_total_mib=_number(total),
        utilization=_number(utilization),
        driver=driver,
        name=name,
    )


def _number(text: str) -> int:
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12
