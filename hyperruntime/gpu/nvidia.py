"""What ``nvidia-smi`` says of this machine's GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import attrs

from hyperruntime.errors import DeviceError
from hyperruntime.host.process import find_program, run_process

PROGRAM = "nvidia-smi"
NO_DRIVER = (
    "there is no nvidia-smi on PATH, so no NVIDIA driver is installed here or this machine has no GPU; install the "
    "driver, or run on a machine that has one (under Slurm: `srun --gres=gpu:1 ...`)"
)
_FIELDS = ("index", "uuid", "memory.used", "memory.total", "utilization.gpu", "driver_version", "name")
_TIMEOUT_S = 30.0


@attrs.frozen(kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        index: as nvidia-smi counts.
        uuid: names it for ever.
        memory_used_mib: of its memory, by anybody; 0 where it does not say.
        memory_total_mib: of its memory; 0 where it does not say.
        utilization: per cent of the last second; 0 where it does not say.
        driver: version of the driver.
        name: of the product.
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
        """What to sort by: the least used first."""
        return (self.memory_used_mib / max(1, self.memory_total_mib), self.utilization, int(self.index))


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine that we may see.

    Raises:
        DeviceError: there is no driver, or it fails.
    """
    program = find_program(PROGRAM)
    if program is None:
        raise DeviceError(NO_DRIVER)
    query = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        result = run_process(query, timeout_s=_TIMEOUT_S)
    except (OSError, TimeoutError) as error:
        raise DeviceError(f"nvidia-smi cannot be run: {error}; see `nvidia-smi` and `dmesg`") from error
    if result.exit_code != 0:
        words = " ".join((result.stdout + result.stderr).decode(errors="replace").split())[-300:]
        raise DeviceError(f"nvidia-smi fails with exit code {result.exit_code}: {words}; see `nvidia-smi` and `dmesg`")
    return parse_gpus(result.stdout.decode(errors="replace"))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of nvidia-smi's table; a line that is none is left out."""
    rows = ([cell.strip() for cell in line.split(",", len(_FIELDS) - 1)] for line in text.splitlines())
    return tuple(_gpu(row) for row in rows if len(row) == len(_FIELDS) and _is_number(row[0]))


def only_allowed(gpus: Sequence[Gpu], env: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Return those that ``CUDA_VISIBLE_DEVICES`` lets us have: a job scheduler says so with it."""
    text = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in text.split(",")):
        matches = [gpu for gpu in gpus if word and (word == gpu.index or gpu.uuid.startswith(word))]
        if len(matches) != 1:  # as CUDA does: what follows a name that is none does not count
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
