"""CDI specs of fake GPUs: devices that every machine has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hyperruntime as hr

LIBRARY = "/opt/fake-driver/libfake.so.1"
Describe = Callable[..., Path]


def fake_spec(
    kind: str, library: Path, *, host_path: str = "/dev/null", **edits: object
) -> dict[str, Any]:
    """Return a CDI spec of two GPUs, each with its own device node, and of a driver library."""
    mount = {
        "hostPath": str(library),
        "containerPath": LIBRARY,
        "options": ["ro", "nosuid", "nodev", "rbind"],
    }
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "containerEdits": {"env": ["FAKE_DRIVER=a b=c", "FAKE_GPUS=yes"], "mounts": [mount], **edits},
        "devices": [
            {"name": str(number), "containerEdits": {"deviceNodes": [
                {"path": f"/dev/fakegpu{number}", "hostPath": host_path}
            ]}}
            for number in range(2)
        ],
    }  # fmt: skip


def devices_in(container: hr.Container) -> list[str]:
    names = container.exec(["ls", "/dev"]).check().stdout.decode().split()
    return [name for name in names if name.startswith("fakegpu")]
