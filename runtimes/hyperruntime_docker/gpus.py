"""Find the environment of CDI specs for execs: Docker gives it to the main process only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.devices import GENERATE, load_devices, merge_edits
from hyperruntime_docker.args import NAME, Settings, cdi_names, gpu_names


def device_env(gpus: str | Sequence[str] | None, settings: Settings) -> Mapping[str, str]:
    """Return the environment that every exec needs to use the GPUs of its spec.

    Args:
        gpus: the ``gpus`` field of the spec.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: CDI names are requested, but the daemon does not accept them or has
            no CDI device.
        DeviceNotFoundError: no CDI spec that the daemon reads describes one of the GPUs.
    """
    names = () if gpus is None else cdi_names(gpu_names(gpus), settings)
    if not names:
        return {}
    if not gives_gpus(settings):
        places = " and ".join(settings.cdi_dirs)
        why = f"no CDI spec in {places}, which its daemon reads, describes a device"
        raise UnsupportedOptionError(NAME, "gpus", f"{why}; {GENERATE}, or leave gpus at None")
    return merge_edits(load_devices(settings.cdi_dirs).resolve(names)).env


def gives_gpus(settings: Settings) -> bool:
    """Return whether the daemon has GPUs to give; before Docker 28.3 it lists none, so the CDI
    specs are read.
    """
    listed = settings.nvidia or bool(settings.cdi_devices)
    return listed or (bool(settings.cdi_dirs) and bool(load_devices(settings.cdi_dirs).devices))
