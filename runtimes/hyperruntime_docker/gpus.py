"""What GPUs by CDI name mean for execs: their specs' environment, which Docker gives to the main process alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.devices import GENERATE, load_devices, merge_edits
from hyperruntime_docker.args import NAME, Settings, cdi_names, gpu_names


def device_env(gpus: str | Sequence[str] | None, settings: Settings) -> Mapping[str, str]:
    """Return the environment that every exec needs so that the GPUs of a spec work in it.

    Raises:
        UnsupportedOptionError: the daemon takes no CDI names, or knows no device, and some were given.
        DeviceNotFoundError: no spec that the daemon reads describes one of them.
    """
    names = () if gpus is None else cdi_names(gpu_names(gpus), settings)
    if not names:
        return {}
    if not gives_gpus(settings):
        places = " and ".join(settings.cdi_dirs)
        why = f"no CDI spec in {places}, where its daemon looks, describes a device"
        raise UnsupportedOptionError(NAME, "gpus", f"{why}; {GENERATE}, or leave gpus at None")
    return merge_edits(load_devices(settings.cdi_dirs).resolve(names)).env


def gives_gpus(settings: Settings) -> bool:
    """Tell whether the daemon has a device to give; those of before 28.3 do not list them, so their specs are read."""
    listed = settings.nvidia or bool(settings.cdi_devices)
    return listed or (bool(settings.cdi_dirs) and bool(load_devices(settings.cdi_dirs).devices))
