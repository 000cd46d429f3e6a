"""What GPUs by CDI name mean for execs: their specs' environment, which Docker gives to the main process alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyperruntime.devices import load_devices, merge_edits
from hyperruntime_docker.args import Settings, cdi_names, gpu_names


def device_env(gpus: str | Sequence[str] | None, settings: Settings) -> Mapping[str, str]:
    """Return the environment that every exec needs so that the GPUs of a spec work in it.

    Raises:
        UnsupportedOptionError: the daemon takes no CDI names, and some were given.
        DeviceNotFoundError: no spec that the daemon reads describes one of them.
    """
    names = () if gpus is None else cdi_names(gpu_names(gpus), settings)
    return merge_edits(load_devices(settings.cdi_dirs).resolve(names)).env if names else {}
