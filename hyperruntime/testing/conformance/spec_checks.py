"""Checks of the spec: each field is honoured, or refused by name; a GPU is in the container that
requests it alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hyperruntime.errors import (
    DeviceNotFoundError,
    SpecError,
    UnsupportedOptionError,
    UserNotFoundError,
)
from hyperruntime.gpu.devices import ENVIRONMENT_VARIABLE
from hyperruntime.run_as import RunAs
from hyperruntime.spec import Mount
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import (
    LABEL,
    Context,
    fields_of,
    left_of,
    marker,
    shell,
)

DEVICE = "hyperruntime.example/gpu=conformance"
NODE = "/dev/hyperruntime0"
HOST_NODE = "/dev/null"
VARIABLE = "HYPERRUNTIME_CONFORMANCE"
LIBRARY = "/opt/hyperruntime-conformance/library"


def look(node: str) -> str:
    """Return the script that prints what it finds of the described device."""
    found = f"test -c {node} && echo x >{node} && echo node"
    return f'{found}; echo "variable ${VARIABLE}"; cat {LIBRARY}'


@check("spec.mounts", needs="mounts")
def mounts(context: Context) -> None:
    """Mounts show their source, also at odd paths, and are read-only unless the spec says
    otherwise.
    """
    place = context.place()
    other = context.place("comma,colon:equals=")
    (place / "file").write_text("host")
    (place / "one").write_text("alone")
    (place / "one").chmod(0o644)
    asked = (
        Mount(source=str(place), target="/mounted read only"),
        Mount(source=str(other), target="/mounted", read_only=False),
        Mount(source=str(place / "one"), target="/mounted-file"),
        Mount(source=str(place / "one"), target="/missing/parents/file"),
    )
    with context.start(mounts=asked) as container:
        expect_equal(
            container.exec(["cat", "/mounted read only/file"]).stdout, b"host", "a file of a mount"
        )
        expect_equal(
            container.exec(["cat", "/mounted-file"]).stdout, b"alone", "a mount of one file"
        )
        if context.info.users:
            read = container.exec(
                ["cat", "/missing/parents/file", "/etc/passwd"], user=RunAs(uid=20_004)
            )
            expect_equal(
                read.check().stdout[:5], b"alone", "a mount below new directories, for another user"
            )
        for script in (
            ': >"/mounted read only/new"',
            ': >"/mounted read only/file"',
            ": >/mounted-file",
        ):
            expect(
                shell(container, script).exit_code != 0,
                f"a read-only mount was written to by {script}",
            )
        shell(container, "echo inside >/mounted/new").check()
    expect_equal((other / "new").read_text(), "inside\n", "the file in a writable mount")
    found = {path.name: path.read_text() for path in place.iterdir()}
    expect_equal(found, {"file": "host", "one": "alone"}, "a read-only mount")


@check("spec.read-only-rootfs", needs="read_only_rootfs")
def read_only_rootfs(context: Context) -> None:
    """A read-only root file system is not writable, but /tmp is."""
    with context.start(read_only_rootfs=True) as container:
        for directory in ("/", "/usr", "/etc"):
            expect(
                shell(container, f": >{directory}/new").exit_code != 0,
                f"{directory} could be written to",
            )
        shell(container, "echo x >/tmp/new && cat /tmp/new").check()
    place = context.place()
    mounted = Mount(source=str(place), target="/tmp/", read_only=False)  # noqa: S108 - inside a container
    with context.start(read_only_rootfs=True, mounts=(mounted,)) as container:
        shell(container, "echo in >/tmp/file").check()
    expect_equal((place / "file").read_text(), "in\n", "a file in a mount at /tmp")


@check("spec.writable-rootfs")
def writable_rootfs(context: Context) -> None:
    """By default the root file system is writable, and a file of 96 MiB fits."""
    script = (
        "mkdir -p /work/new && dd if=/dev/zero of=/work/new/file bs=1M count=96 2>/dev/null && "
        "wc -c </work/new/file"
    )
    with context.start() as container:
        result = shell(container, script, timeout_s=40)
        expect_equal(
            result.stdout.strip(), b"100663296", f"writing 96 MiB below / ({result.stderr!r})"
        )


@check("spec.user", needs="user")
def user(context: Context) -> None:
    """Every command runs as the spec's user, and a timeout ends everything that it started."""
    with context.start(user="65534:65534") as container:
        status = fields_of(container.exec(["cat", "/proc/self/status"]).stdout.decode())
        expect_equal(set(status["Uid"].split()), {"65534"}, "the uids of a command")
        late = shell(container, "setsid sleep $1 & sleep $1", mark := marker(), timeout_s=0.5)
        expect(late.timed_out, "the command did not time out")
        expect_equal(left_of(container, mark), [], "remaining processes")
        expect_equal(container.exec(["echo", "on"]).stdout, b"on\n", "the next command")


@check("spec.clear-errors")
def clear_errors(context: Context) -> None:
    """A missing mount source or working directory is an error that names it, and no container is
    left.
    """
    mark = marker()
    for what, fields, word in (
        (
            "a mount's missing source",
            {"mounts": (Mount(source="/no/such/source", target="/x"),)},
            "/no/such/source",
        ),
        ("a missing workdir", {"workdir": "/no/such/dir"}, "workdir"),
    ):
        with expect_error(SpecError, what, word):
            context.start(labels={LABEL: mark}, **fields).close()
    expect(mark not in context.own(), "a container is left")


@check("spec.unknown-user", needs="user")
def unknown_user(context: Context) -> None:
    """A user unknown to the image is a UserNotFoundError that names the user."""
    with expect_error(UserNotFoundError, "an unknown user", "user", "nobody-at-all"):
        context.start(user="nobody-at-all").close()


@check("spec.gpus", needs="gpus")
def gpus(context: Context) -> None:
    """A requested device is present with its files and variables; other containers do not have
    it.
    """
    for node in (NODE, HOST_NODE):  # an engine may give devices under the host's names only
        with described_device(context, node):
            if _gives_described_device(context, node):
                return
    _expect_own_devices(context)


def _gives_described_device(context: Context, node: str) -> bool:
    """Return whether the engine reads our CDI specs.

    Raises:
        AssertionError: the engine reads them, but the device is not as described.
    """
    try:
        container = context.start(gpus=DEVICE)
    except (DeviceNotFoundError, UnsupportedOptionError) as error:
        if not context.info.gpus:
            raise
        expect(
            "gpus" in str(error) or DEVICE in str(error),
            f"the error does not name the device: {error}",
        )
        return False
    with container:
        expect_equal(
            shell(container, look(node)).stdout,
            b"node\nvariable a b=c\ntext\n",
            "node, variable and file of the device",
        )
        expect(
            shell(container, f"echo x >{LIBRARY}").exit_code != 0,
            "a read-only file of the device was changed",
        )
    found = shell(context.container, look(NODE)).stdout
    expect_equal(
        found, b"variable \n", "parts of the device in a container that did not request it"
    )
    return True


@contextmanager
def described_device(context: Context, node: str) -> Iterator[None]:
    """Describe a device with a node in a CDI directory that only this process reads."""
    place = context.place("devices")
    (place / "library").write_text("text\n")
    mount = {
        "hostPath": str(place / "library"),
        "containerPath": LIBRARY,
        "options": ["ro", "bind"],
    }
    kind, _, name = DEVICE.partition("=")
    edits = {
        "env": [f"{VARIABLE}=a b=c"],
        "deviceNodes": [{"path": node, "hostPath": HOST_NODE}],
        "mounts": [mount],
    }
    spec = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits}],
    }
    (place / "spec.json").write_text(json.dumps(spec))
    with patch.dict(os.environ, {ENVIRONMENT_VARIABLE: str(place)}):
        yield


def _expect_own_devices(context: Context) -> None:
    """Check that ``gpus="all"`` adds something, for an engine that does not read our CDI specs."""
    script = (
        "ls -R /dev; env; while read -r a b c d target rest; do echo $target; done "
        "</proc/self/mountinfo"
    )
    with context.start(gpus="all") as container:
        found = set(shell(container, script).stdout.splitlines())
    added = found - set(shell(context.container, script).stdout.splitlines())
    expect(bool(added), "gpus='all' adds no device, variable or mount")
