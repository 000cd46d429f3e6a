"""Checks of snapshots: the files of a container at one instant, for others and for itself."""

from __future__ import annotations

from hyperruntime.container import Container
from hyperruntime.errors import ContainerStateError
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context, left_of, marker, shell

# Every kind of change to the files of an image, and to those of a lower layer.
_FIRST = """
umask 022
mkdir -p /kept/deep /gone/deep /again && echo one >/kept/file && echo old >/again/old
ln /kept/file /kept/hard && ln -s ../kept/file /kept/soft && echo x >/kept/secret
chmod 4711 /kept/file && chmod 0600 /kept/secret && rm -rf /etc/profile /usr/share/doc
mkfifo /kept/fifo && touch -d '2001-02-03 04:05:06' /kept/deep
"""
_SECOND = """
echo two >/kept/file.new && mv /kept/file.new /kept/other && rm -rf /gone /kept/secret
rm -rf /again && mkdir /again && echo new >/again/new
"""
# Of a directory the number of links is left out, since an overlay may always say 1, and the size,
# which is that of one layer.
_LIST = """
cd /
{
    ls -ld --time-style=+%s /kept/deep 2>/dev/null || ls -ld /kept/deep
    ls -la /kept /gone /again /usr/share/doc /etc/profile 2>&1
} | sed '/^d.* \\.\\.$/d; s/  */ /g; s/^\\(d[^ ]*\\) [0-9]* \\([^ ]* [^ ]*\\) [0-9]*/\\1 \\2/'
cat /kept/file /kept/hard /again/*
"""


def _shown(container: Container) -> str:
    return shell(container, _LIST).stdout.decode(errors="replace")


@check("snapshot.files", needs="snapshot")
def files(context: Context) -> None:
    """A container that starts from a snapshot has its files: bytes, modes, links, times, and what
    was removed or made again.
    """
    with context.start() as container:
        shell(container, _FIRST).check()
        first = container.snapshot()
        shell(container, _SECOND).check()
        seen = _shown(container)
        second = container.snapshot()
        expect_equal(_shown(container), seen, "the files of the container itself")
        shell(container, "echo later >/kept/later").check()
        with context.runtime.container(context.spec(), base=second) as other:
            expect_equal(_shown(other), seen, "the files of another container")
        with context.runtime.container(context.spec(), base=first) as other:
            found = shell(other, "cat /kept/file /again/*; ls /kept/secret /kept/later").stdout
            expect_equal(found, b"one\nold\n/kept/secret\n", "the files of the first snapshot")


@check("snapshot.rollback", needs="snapshot")
def rollback(context: Context) -> None:
    """A rollback puts the files of a container back and ends its processes; it keeps its name."""
    mark = marker()
    with context.start() as container:
        shell(container, "echo one >/state").check()
        snapshot = container.snapshot()
        name = container.name
        for _ in range(3):
            shell(container, "rm /state; echo two >/other; sleep $1 >/dev/null 2>&1 &", mark)
            container.rollback(snapshot)
            found = shell(container, "cat /state; ls /other").stdout
            expect_equal(found, b"one\n", "the files after a rollback")
            expect_equal(left_of(container, mark), [], "processes after a rollback")
        expect_equal(container.name, name, "the name after a rollback")
        expect(container.is_alive, "a container that was rolled back does not count as alive")


@check("snapshot.fork", needs="snapshot")
def fork(context: Context) -> None:
    """A fork has the files of its parent, and neither sees what the other does later."""
    with context.start() as parent:
        shell(parent, "echo one >/state").check()
        with parent.fork() as child, child.fork() as grandchild:
            shell(child, "echo child >/state").check()
            shell(parent, "echo parent >/state").check()
            found = [shell(one, "cat /state").stdout for one in (parent, child, grandchild)]
            expect_equal(found, [b"parent\n", b"child\n", b"one\n"], "the files of the three")


@check("snapshot.running", needs="snapshot")
def running(context: Context) -> None:
    """A snapshot with processes alive is refused, unless that is allowed; then they go on."""
    mark = marker()
    with context.start() as container:
        shell(container, "echo one >/state; sleep $1 >/dev/null 2>&1 &", mark).check()
        with expect_error(ContainerStateError, "a snapshot with a process", "1 processes"):
            container.snapshot()
        snapshot = container.snapshot(allow_running=True)
        expect_equal(len(left_of(container, mark)), 1, "processes after a snapshot")
        with context.runtime.container(context.spec(), base=snapshot) as other:
            expect_equal(shell(other, "cat /state").stdout, b"one\n", "the files of another one")
            expect_equal(left_of(other, mark), [], "processes of another one")
