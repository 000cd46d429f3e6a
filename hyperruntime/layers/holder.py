"""The program that starts sandboxes from inside a user namespace: one per runtime.

``unshare --user ... --mount python -I -S holder.py JOBS CONTROL``. Entering a namespace with
subordinate ids needs two setuid programs and takes 8 ms; the holder is in one already. It always
has two *starters*, forked children with a user and a mount namespace of their own, that wait for a
job on the socket JOBS. A starter mounts the files of the sandbox, and becomes the program of the
job. So a sandbox costs no start of Python and no fork before its program runs, and each has
a user namespace of its own: limits on processes and keyrings are counted there.

``unshare --user ... --mount python -I -S holder.py JOB`` does the one job of a file: a trial.

With a third word, ``plain``, and without ``unshare``, it makes no namespaces: for an engine that is
a setuid program. Its starters mount nothing then.

The holder removes the files and the record of a sandbox when its program has ended. When its owner
has ended, it kills all programs, removes their files, and ends. It runs as a program, and imports
the standard library only. :mod:`hyperruntime.layers.namespace` starts it and talks to it.

Source: user_namespaces(7), mount(2), unix(7), prctl(2), the kernel's overlayfs.rst ("userxattr",
"Volatile mount").
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

_NEW_USERS = 0x10000000
_NEW_MOUNTS = 0x00020000
_NETWORK = 0x40000000
_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_PRIVATE = 0x44000  # MS_PRIVATE | MS_REC
_REMOUNT_READ_ONLY = 0x21  # MS_REMOUNT | MS_RDONLY
_PARENT_DEATH_SIGNAL = 1
_MOST_BYTES = 1 << 18
_STARTERS = 2
_PAUSE_MS = 10  # before another one is made: the last job needs the processors
_MOST_FAILED = 3
_LAST_WORD_S = 10.0  # for a starter that is stopped, or has no processor
_MOST_STEPS = 4096
_MOST_FILES = 64  # that the holder removes itself
# a batch system that ends a job sends one to all processes; the owner's end counts
_IGNORED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode())
    done = _libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options))
    _check(done, f"the mount of {target}")


def _receive(source: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a message and its descriptors; ``recv_fds`` ignores flags before Python 3.12."""
    space = socket.CMSG_SPACE(3 * array("i").itemsize)
    message, parts, _, _ = source.recvmsg(size, space, flags | socket.MSG_CMSG_CLOEXEC)
    streams = array("i")
    for _, _, data in parts:
        streams.frombytes(data)
    return message, list(streams)


def _maps() -> tuple[str, str]:
    """Return the maps of a namespace below this one that has the same ids."""
    found = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:
            lines = [line.split() for line in file]
        found.append("".join(f"{inside} {inside} {count}\n" for inside, _, count in lines))
    return found[0], found[1]


def mount_layers(files: dict[str, Any]) -> None:
    """Mount the layers of a sandbox; its first layer is the highest one.

    All options of a mount together have at most one page, so paths are relative to a directory.
    """
    if files["image"]:
        program, file, tree = files["image"]
        _mount_by(program, "allow_other", tree, file)
    os.chdir(files["directory"])
    options = f"lowerdir={lowest(files['layers'])}"
    for name in ("upperdir", "workdir"):
        options += f",{name}={_escaped(files[name])}"
    if files["program"]:
        _mount_by(files["program"], options, files["at"])
    else:
        options += ",userxattr"
        try:
            _mount("overlay", files["at"], "overlay", 0, f"{options},volatile")
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux 5.10 brought "volatile"
                raise
            _mount("overlay", files["at"], "overlay", 0, options)
    os.chdir("/")


def lowest(layers: Sequence[str]) -> str:
    """Return layers as the options of a mount name them."""
    return ":".join(_escaped(one).replace(":", r"\:") for one in layers)


def _mount_by(program: str, options: str, at: str, *source: str) -> None:
    """Let a program of FUSE mount layers, or the file of an image. It ends with this process, which
    becomes the sandbox.
    """
    before = os.stat(at).st_dev
    pid = os.fork()
    if pid == 0:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.execv(program, [program, "-f", "-o", options, *source, at])
    while os.stat(at).st_dev == before:
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise OSError(f"{program} mounted nothing at {at}")
        time.sleep(0.001)


def _escaped(path: str) -> str:
    return path.replace("\\", r"\\").replace(",", r"\,")


def inside(root: str, path: str) -> str:
    """Return a path of a sandbox without links, which are followed inside its root; what does not
    exist stays as it is.
    """
    done: list[str] = []
    left = path.split("/")[::-1]
    for _ in range(_MOST_STEPS):
        if not left:
            break
        name = left.pop()
        if name == "..":
            done = done[:-1]
        elif name not in ("", "."):
            try:
                link = os.readlink("/".join((root, *done, name)))
            except OSError:
                done.append(name)
            else:
                left += link.split("/")[::-1]
                done = [] if link.startswith("/") else done
    else:
        raise OSError(errno.ELOOP, f"{path} has too many links")
    found = "/" + "/".join(done)
    # what is mounted there later has links of its own, such as /proc/self/root
    if found != os.path.normpath(path) and found.startswith(("/proc/", "/dev/")):
        raise OSError(errno.ELOOP, f"{path} is a link of the image to {found}")
    if found != path and path in ("/proc", "/dev"):
        raise OSError(errno.ELOOP, f"{path} of the image is a link")
    return found


def _make_points(root: str, points: dict[str, int | None]) -> None:
    """Make the paths that a root lacks: directories with a mode, or files."""
    for path, mode in points.items():
        place = root + inside(root, path)
        if not os.path.lexists(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if mode is None:
                os.close(os.open(place, os.O_CREAT | os.O_EXCL, 0o644))
            else:
                os.mkdir(place)
                os.chmod(place, mode)


def _become(job: dict[str, Any]) -> None:
    """Mount the files of a job, and become its program; the streams are open."""
    if job["layers"]:
        mount_layers(job["layers"])
    if job["layers"] or job["copied"]:
        mask = os.umask(0o022)
        _make_points(job["root"], job["points"])
        os.umask(mask)
    if job["layers"] and job["read_only"]:
        _mount("overlay", job["root"], "overlay", _REMOUNT_READ_ONLY, "")
    for path, number in job["open"]:
        opened = os.open(path, os.O_RDONLY)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
    for name, limit in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    args = job["args"]
    for place in job["inside"]:
        args[place] = inside(job["root"], args[place])
    os.execve(job["program"], args, job["env"])


def _enter(holder: socket.socket, maps_written: int) -> None:
    """Enter the namespaces of a sandbox, which end with the holder."""
    _check(_libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
    _check(_libc.unshare(_NEW_USERS | _NEW_MOUNTS), "a user namespace")
    holder.send(b"unshared")
    os.read(maps_written, 1)
    _mount("none", "/", "none", _PRIVATE, "")


def _join(network: int) -> None:
    """Enter the network of another sandbox, before the namespaces in which it belongs to nobody;
    its root has no rights there, so that every port is free for all.
    """
    _check(_libc.setns(network, _NETWORK), "its network")
    os.close(network)
    with suppress(OSError), open(_PORTS, "w") as file:
        file.write("0")


def _start(
    jobs: socket.socket,
    holder: socket.socket,
    maps_written: int,
    *,
    is_plain: bool,
    network: int = -1,
) -> None:
    """Wait for a job, and become its program; the process of a starter. Its errors go to the
    output of the job.
    """
    try:
        if network >= 0:
            _join(network)
        # a plain one outlives the holder, because its name leads to the processes of the sandbox
        if not is_plain:
            _enter(holder, maps_written)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        json.loads('{"a": ["b", 1]}')  # the pages that a job needs are copied before it comes
        message, streams = _receive(jobs, 16)
        if not message:
            os._exit(0)
        for ignored in _IGNORED:
            signal.signal(ignored, signal.SIG_DFL)
        for number, stream in enumerate((streams[0], streams[1], streams[1])):
            os.dup2(stream, number)
        with open(streams[2], "rb") as file:
            file.seek(0)
            job = json.load(file)
        holder.send(json.dumps([job["job"], job["directory"], job["record"]]).encode())
        _become(job)
    except BaseException as error:  # noqa: BLE001 - this process must not go on as the holder
        os.write(2, f"{error}\n".encode())
    os._exit(126)


def _remove_few(directory: str, most: int) -> int:
    """Remove a directory with at most ``most`` files; return how many more there might be, or a
    negative number if there are more. The next program needs the processor more than `rm` would.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            most -= 1
            if most >= 0 and entry.is_dir(follow_symlinks=False):
                most = _remove_few(entry.path, most)
            elif most >= 0:
                os.unlink(entry.path)
            if most < 0:
                return most
    os.rmdir(directory)
    return most


def _network_of(pid: int) -> int:
    """Return the open network of a sandbox, that of the innermost program with another one than
    ours; -1 if there is none.
    """
    found = -1
    pids = [pid] if pid else []
    own = os.stat("/proc/self/ns/net").st_ino
    while pids:
        one = pids.pop(0)
        with suppress(OSError):
            opened = os.open(f"/proc/{one}/ns/net", os.O_RDONLY)
            keep, drop = (found, opened) if os.fstat(opened).st_ino == own else (opened, found)
            found = keep
            if drop >= 0:
                os.close(drop)
            with open(f"/proc/{one}/task/{one}/children") as file:
                pids += map(int, file.read().split())
    return found


def _forget(record: str) -> None:
    with suppress(FileNotFoundError):  # the owner was faster
        os.unlink(record)


class _Holder:
    """The sandboxes, and the starters that wait for the next ones."""

    def __init__(self, jobs: socket.socket, control: socket.socket, *, is_plain: bool) -> None:
        self._jobs = jobs
        self._control = control
        self._is_plain = is_plain
        self._maps = _maps()
        self._poll = select.poll()
        self._starters: dict[int, tuple[socket.socket, int]] = {}  # by descriptor; with their pid
        self._failed = 0  # starters in a row
        self._failed_jobs = 0  # and those that failed while a job waited
        self._has_worked = False  # whether a starter had its namespaces
        self._pids: dict[int, int] = {}  # of the programs of jobs
        self._running: dict[int, tuple[int, str, str]] = {}  # job, directory and record, by pid
        self._ended: dict[int, int] = {}  # exit codes of jobs
        self._doomed: set[int] = set()  # jobs to kill
        self._removing: dict[int, str] = {}  # records, by the pid of what removes the files

    def run(self) -> None:
        """Start sandboxes until the owner has ended; then remove what they left."""
        owner = os.pidfd_open(os.getppid())
        wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for each in signal.valid_signals():
            if each not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(each, signal.SIG_IGN if each in _IGNORED else signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for descriptor in (owner, wake, self._control.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        self._control.send(b"ready")
        while self._failed < _MOST_FAILED or self._has_worked:
            ready = self._wait()
            for descriptor in ready & self._starters.keys():
                self._hear(descriptor)
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if owner in ready or (self._control.fileno() in ready and not self._answer()):
                break
        self._end()

    def _wait(self) -> set[int]:
        """Return the descriptors that have something to read; make starters meanwhile."""
        if not self._starters:
            self._try_fork()
        if self._failed_jobs >= _MOST_FAILED and self._has_worked:  # what runs goes on
            self._refuse_jobs()
        is_short = len(self._starters) < _STARTERS
        pause_ms = min(1000, _PAUSE_MS << min(self._failed, 7))
        ready = {one for one, _ in self._poll.poll(pause_ms if is_short else None)}
        if is_short and not ready:
            self._try_fork()
        return ready

    def _try_fork(self) -> None:
        try:
            self._fork_starter()
        except OSError as error:  # no process, descriptor or memory is left
            self._has_failed()
            os.write(2, f"{error}\n".encode())

    def _has_failed(self) -> None:
        """Count a starter that ended without a job."""
        self._failed += 1
        is_needed = select.select([self._jobs], [], [], 0)[0]
        self._failed_jobs = self._failed_jobs + 1 if is_needed else 0

    def _refuse_jobs(self) -> None:
        """End the jobs that wait, because no starter can be made now."""
        self._failed_jobs = 0
        self._refuse(self._jobs, "no process or no namespace can be made for it")

    def _refuse(self, jobs: socket.socket, why: str) -> None:
        for job, output in self._never_started(jobs):
            with suppress(OSError):
                os.write(output, f"{why}\n".encode())
            self._ended[job["job"]] = 126
            self._remove(job["directory"], job["record"])

    def _join(self, job: int, streams: list[int]) -> None:
        """Start a job in the network of another one."""
        ours, jobs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, jobs:
            socket.send_fds(ours, [b"job"], streams)
            for one in streams:
                os.close(one)
            why = "the container whose network it joins has ended"
            if (network := _network_of(self._pids.get(job, 0))) >= 0:
                why = "it cannot join the network of its container"
                with suppress(OSError):
                    self._hear(self._fork_starter(jobs, network))
                os.close(network)
            self._refuse(jobs, why)  # if it was not taken

    def _fork_starter(self, jobs: socket.socket | None = None, network: int = -1) -> int:
        """Make a starter; return the descriptor by which it is heard.

        Args:
            jobs: where its job comes from; None means where all come from.
            network: the network that it joins; -1 means none.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._control.close()
            mine.close()
            os.close(write)
            for other, _ in self._starters.values():
                other.close()
            _start(jobs or self._jobs, theirs, read, is_plain=self._is_plain, network=network)
        theirs.close()
        os.close(read)
        if self._is_plain:
            self._has_worked = True
        elif mine.recv(16) == b"unshared":
            self._has_worked = True
            for name, text in zip(("uid_map", "gid_map"), self._maps, strict=True):
                with open(f"/proc/{pid}/{name}", "w") as file:
                    file.write(text)
        os.close(write)  # the starter reads end-of-file and goes on
        self._starters[mine.fileno()] = mine, pid
        self._poll.register(mine, select.POLLIN)
        return mine.fileno()

    def _hear(self, descriptor: int) -> None:
        """Take note of a starter that has its job, or has ended without one."""
        channel, pid = self._starters.pop(descriptor)
        self._poll.unregister(descriptor)
        message = channel.recv(_MOST_BYTES)
        channel.close()
        if not message:
            self._has_failed()
        else:
            self._failed = 0
            self._failed_jobs = 0
            job, directory, record = json.loads(message)
            self._running[pid] = job, directory, record
            self._pids[job] = pid
            if job in self._doomed:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            # a `bwrap` that is killed while it starts leaves a child that waits for it for ever
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            for descriptor, (_, starter) in list(self._starters.items()):
                if starter == pid:  # it may have become a program that has ended already
                    self._hear(descriptor)
            if pid in self._running:
                job, directory, record = self._running.pop(pid)
                del self._pids[job]
                self._ended[job] = os.waitstatus_to_exitcode(status)
                self._remove(directory, record)
            elif (record := self._removing.pop(pid, "")) and status == 0:
                _forget(record)

    def _remove(self, directory: str, record: str) -> None:
        with suppress(OSError):
            if _remove_few(directory, _MOST_FILES) >= 0:
                _forget(record)
                return
        ending = f"{record}.ending"  # no list shows it, unless this process ends before it
        with suppress(OSError):
            os.rename(record, ending)
            record = ending
        args = ["rm", "-rf", "--", directory]
        with suppress(OSError):  # else the record leads the owner's guard to it
            self._removing[os.posix_spawn("/bin/rm", args, {"PATH": os.defpath})] = record

    def _answer(self) -> bool:
        """Do what the owner asks; return whether it is there."""
        try:
            message, streams = _receive(self._control, _MOST_BYTES)
            if not message:
                return False
            number, verb, job = json.loads(message)
            if verb == "join":
                self._join(job, streams)
                return True
            self._control.send(json.dumps({"to": number, "code": self._ask(verb, job)}).encode())
        except OSError:
            return False
        return True

    def _ask(self, verb: str, job: int) -> int | None:
        """Return the exit code of a job's program, which is then forgotten; None while it runs, or
        no starter has taken it.
        """
        for descriptor in list(self._starters):
            if select.select([descriptor], [], [], 0)[0]:
                self._hear(descriptor)
        self._reap()
        if verb == "kill" and job not in self._ended:
            self._doomed.add(job)
            if job in self._pids:
                os.kill(self._pids[job], signal.SIGKILL)
        code = self._ended.pop(job, None)
        if code is not None:
            self._doomed.discard(job)
        return code

    def _end(self) -> None:
        self._jobs.shutdown(socket.SHUT_RD)  # each starter ends, or says which job it has
        for descriptor, (_, pid) in list(self._starters.items()):
            if not select.select([descriptor], [], [], _LAST_WORD_S)[0]:
                os.kill(pid, signal.SIGKILL)
            self._hear(descriptor)
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        while self._running:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()
        for job, _ in self._never_started(self._jobs):
            self._remove(job["directory"], job["record"])
        while self._removing:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()

    def _never_started(self, jobs: socket.socket) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each job that no starter has taken, and the descriptor of its output."""
        while True:
            try:
                message, streams = _receive(jobs, 16, socket.MSG_DONTWAIT)
            except OSError:
                return
            if not message:
                return
            with open(streams[2], "rb") as file:
                file.seek(0)
                job = json.load(file)
            yield job, streams[1]
            os.close(streams[0])
            os.close(streams[1])


def _main() -> None:
    if len(sys.argv) == 2:
        try:
            with open(sys.argv[1], "rb") as file:
                job = json.load(file)
            _become(job)
        except OSError as error:
            sys.exit(str(error))
    jobs, control = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    for one in (jobs, control):
        one.set_inheritable(False)
    gc.disable()  # it would touch, and so copy, pages that starters share
    _Holder(jobs, control, is_plain=sys.argv[3:] == ["plain"]).run()


if __name__ == "__main__":
    _main()
