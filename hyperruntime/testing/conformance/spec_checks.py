"""Checks of a spec: each field is honoured, or refused by name; limits hold when they are exceeded."""

from __future__ import annotations

import os
import re

from hyperruntime.container import Container
from hyperruntime.errors import ContainerLostError, SpecError
from hyperruntime.spec import Mount
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context, fields_of, shell
from hyperruntime.units import MIB

# Runs for two seconds on its own processor time, then prints it. Source: POSIX.1 sh, `times`.
BURN = "trap 'times; exit 0' USR1; (sleep 2; kill -USR1 $$) & while :; do :; done"


@check("spec.mounts", needs="mounts")
def mounts(context: Context) -> None:
    """Mounts show what they name, read-only unless they say otherwise, whatever the paths are called."""
    place, other = context.place(), context.place("comma,colon:equals=")
    (place / "file").write_text("host")
    (place / "one").write_text("alone")
    asked = (
        Mount(source=str(place), target="/mounted read only"),
        Mount(source=str(other), target="/mounted", read_only=False),
        Mount(source=str(place / "one"), target="/mounted-file"),
    )
    with context.start(mounts=asked) as container:
        expect_equal(container.exec(["cat", "/mounted read only/file"]).stdout, b"host", "a file of a mount")
        expect_equal(container.exec(["cat", "/mounted-file"]).stdout, b"alone", "a mount of one file")
        for script in (': >"/mounted read only/new"', ': >"/mounted read only/file"', ": >/mounted-file"):
            expect(shell(container, script).exit_code != 0, f"a read-only mount was written to by {script}")
        shell(container, "echo inside >/mounted/new").check()
    expect_equal((other / "new").read_text(), "inside\n", "what was written into a writable mount")
    expect_equal(((place / "file").read_text(), os.listdir(place)), ("host", os.listdir(place)), "a read-only mount")


@check("spec.read-only-rootfs", needs="read_only_rootfs")
def read_only_rootfs(context: Context) -> None:
    """A read-only root file system cannot be written to, and /tmp can."""
    with context.start(read_only_rootfs=True) as container:
        for directory in ("/", "/usr", "/etc"):
            expect(shell(container, f": >{directory}/new").exit_code != 0, f"{directory} could be written to")
        shell(container, "echo x >/tmp/new && cat /tmp/new").check()


@check("spec.writable-rootfs")
def writable_rootfs(context: Context) -> None:
    """Without it the root can be written to, far more than a memory file system would hold by default."""
    script = (
        "mkdir -p /work/new && dd if=/dev/zero of=/work/new/file bs=1M count=96 2>/dev/null && wc -c </work/new/file"
    )
    with context.start() as container:
        result = shell(container, script, timeout_s=40)
        expect_equal(result.stdout.strip(), b"100663296", f"writing 96 MiB below / ({result.stderr!r})")


@check("spec.user", needs="user")
def user(context: Context) -> None:
    """The user of a spec runs every exec, and what it starts is ended like any other's."""
    with context.start(user="65534:65534") as container:
        status = fields_of(container.exec(["cat", "/proc/self/status"]).stdout.decode())
        expect_equal(set(status["Uid"].split()), {"65534"}, "the uids of a command")
        expect(shell(container, "setsid sleep 60 & sleep 60", timeout_s=0.5).timed_out, "its deadline did not come")
        expect_equal(container.exec(["echo", "on"]).stdout, b"on\n", "the next command")


@check("spec.clear-errors")
def clear_errors(context: Context) -> None:
    """What a spec names and is not there is one error that names it, and no container is left."""
    before = set(context.own())
    for what, fields, word in (
        ("a mount's missing source", {"mounts": (Mount(source="/no/such/source", target="/x"),)}, "/no/such/source"),
        ("a missing workdir", {"workdir": "/no/such/dir"}, "workdir"),
    ):
        with expect_error(SpecError, what, word):
            context.start(**fields).close()
    expect_equal(set(context.own()) - before, set(), "containers that are left")


@check("spec.unknown-user", needs="user")
def unknown_user(context: Context) -> None:
    """A user that the image does not know is an error that names it."""
    with expect_error(SpecError, "an unknown user", "user", "nobody-at-all"):
        context.start(user="nobody-at-all").close()


@check("spec.gpus", needs="gpus")
def gpus(context: Context) -> None:
    """GPUs that were asked for are there: a device, a mount or a variable that is not there without."""
    script = "ls -R /dev; env; while read -r a b c d target rest; do echo $target; done </proc/self/mountinfo"
    with context.start(gpus="all") as container:
        added = set(shell(container, script).stdout.splitlines()) - set(
            shell(context.container, script).stdout.splitlines()
        )
    expect(bool(added), "nothing is there that is not there without gpus='all'")


@check("limits.memory", needs="limits.memory_bytes")
def memory(context: Context) -> None:
    """A command past the memory limit fails; it never gets the memory."""
    with context.start(limits=context.limits(memory_bytes=64 * MIB)) as container:
        try:
            flood = "dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null && echo fits"
            expect_equal(shell(container, flood, timeout_s=40).stdout, b"", "300 MiB in a container of 64 MiB")
            _expect_usable(container)
        except ContainerLostError as error:
            expect(error.post_mortem is not None, f"the container was lost with no post-mortem: {error}")


@check("limits.cpus", needs="limits.cpus")
def cpus(context: Context) -> None:
    """A container gets no more processor time than its limit."""
    with context.start(limits=context.limits(cpus=0.3)) as container:
        result = shell(container, BURN, timeout_s=40)
    found = re.match(rb"(\d+)m([\d.]+)s", result.stdout)
    if found is None:
        raise AssertionError(f"its processor time is not known: {result}")
    used, allowed = int(found[1]) * 60 + float(found[2]), 0.3 * result.duration_s
    expect(used < allowed * 1.4 + 0.2, f"{used:.2f} s of processor time in {result.duration_s:.2f} s with 0.3 cpus")


@check("limits.pids", needs="limits.pids")
def pids(context: Context) -> None:
    """A container has no more processes than its limit, and is usable when they have ended."""
    with context.start(limits=context.limits(pids=60)) as container:
        script = "i=0; while [ $i -lt 200 ]; do sleep 3 & i=$((i + 1)); done; echo all"
        result = shell(container, script, timeout_s=20)
        expect(b"all" not in result.stdout, "200 processes were made in a container of 60")
        _expect_usable(container)


@check("limits.tmpfs", needs="limits.tmpfs_bytes")
def tmpfs(context: Context) -> None:
    """The directory /tmp holds no more than its limit, and running over it is the command's own failure."""
    with context.start(limits=context.limits(tmpfs_bytes=4 * MIB)) as container:
        full = shell(container, "dd if=/dev/zero of=/tmp/full bs=1M count=9 2>/dev/null")
        expect(full.exit_code != 0, "9 MiB were written to a /tmp of 4 MiB")
        size = int(shell(container, "wc -c </tmp/full").check().stdout)
        expect(2 * MIB <= size <= 4 * MIB, f"{size} bytes fit into a /tmp of {4 * MIB}")
        _expect_usable(container)


def _expect_usable(container: Container) -> None:
    expect_equal(container.exec(["echo", "usable"], timeout_s=20).stdout, b"usable\n", "the next command")
