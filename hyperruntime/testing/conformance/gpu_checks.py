"""Checks of devices: a CDI device is present in the container that requests it, and in no other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hyperruntime.errors import DeviceNotFoundError, UnsupportedOptionError
from hyperruntime.gpu.devices import ENVIRONMENT_VARIABLE
from hyperruntime.testing.conformance.check import check, expect, expect_equal
from hyperruntime.testing.conformance.context import Context, shell

DEVICE = "hyperruntime.example/gpu=conformance"
NODE, VARIABLE, LIBRARY = "/dev/hyperruntime0", "HYPERRUNTIME_CONFORMANCE", "/opt/hyperruntime-conformance/library"
LOOK = f'test -c {NODE} && echo x >{NODE} && echo node; echo "variable ${VARIABLE}"; cat {LIBRARY}'


@check("spec.gpus", needs="gpus")
def gpus(context: Context) -> None:
    """A requested device is present with its files and variables; other containers do not have it."""
    with described_device(context):
        if _gives_described_device(context):
            return
    _expect_own_devices(context)


def _gives_described_device(context: Context) -> bool:
    """Return whether the engine reads our CDI specs.

    Raises:
        AssertionError: the engine reads them, but the device is not as described.
    """
    try:
        container = context.start(gpus=DEVICE)
    except (DeviceNotFoundError, UnsupportedOptionError) as error:
        if not context.info.gpus:
            raise
        expect("gpus" in str(error) or DEVICE in str(error), f"the error does not name the device: {error}")
        return False
    with container:
        expect_equal(
            shell(container, LOOK).stdout, b"node\nvariable a b=c\ntext\n", "node, variable and file of the device"
        )
        expect(shell(container, f"echo x >{LIBRARY}").exit_code != 0, "a read-only file of the device was changed")
    found = shell(context.container, LOOK).stdout
    expect_equal(found, b"variable \n", "parts of the device in a container that did not request it")
    return True


@contextmanager
def described_device(context: Context) -> Iterator[None]:
    """Describe a device with the node ``/dev/null`` in a CDI directory that only this process reads."""
    place = context.place("devices")
    (place / "library").write_text("text\n")
    mount = {"hostPath": str(place / "library"), "containerPath": LIBRARY, "options": ["ro", "bind"]}
    kind, _, name = DEVICE.partition("=")
    edits = {"env": [f"{VARIABLE}=a b=c"], "deviceNodes": [{"path": NODE, "hostPath": "/dev/null"}], "mounts": [mount]}
    spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": name, "containerEdits": edits}]}
    (place / "spec.json").write_text(json.dumps(spec))
    with patch.dict(os.environ, {ENVIRONMENT_VARIABLE: str(place)}):
        yield


def _expect_own_devices(context: Context) -> None:
    """Check that ``gpus="all"`` adds something, for an engine that does not read our CDI specs."""
    script = "ls -R /dev; env; while read -r a b c d target rest; do echo $target; done </proc/self/mountinfo"
    with context.start(gpus="all") as container:
        found = set(shell(container, script).stdout.splitlines())
    added = found - set(shell(context.container, script).stdout.splitlines())
    expect(bool(added), "gpus='all' adds no device, variable or mount")
