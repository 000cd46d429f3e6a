"""Judge a state in a fresh container: the judge of the environment swe, which runs no code of the
candidate.

Started as ``python3 -I -S -c SOURCE`` with one JSON object on standard input; prints one, after the
secret of the question. It is started before any code of the candidate runs, and needs nothing but
Python, 3.6 or newer. The candidate is another uid wherever that can be had: it can then neither
read this process nor write what it prints.
"""

import ctypes
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time

UID = 61234
TAIL_BYTES = 20000
REPORT_BYTES = 32 * 1024 * 1024
GRACE_S = 5.0
CHANCE = random.SystemRandom()
MOST_SPACES = 2
STARTED = set()  # processes that Popen waits for
DUMPABLE, SUBREAPER, NO_NEW_PRIVS, AMBIENT, BOUNDING = 4, 36, 38, 47, 24


def main():
    """Judge, and print the answer."""
    asked = json.load(sys.stdin)
    secret = asked.pop("secret")
    protections = {"untraceable": prctl(DUMPABLE, 0), "kept_in_tree": prctl(SUBREAPER, 1)}
    answer = Judge(asked, protections).judge()
    print(secret + json.dumps(answer))


def prctl(option, value, more=0):
    """Set an attribute of this process; return whether that worked."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(option, value, more, 0, 0) == 0
    except (AttributeError, OSError):
        return False


class Judge:
    """Installs a state and runs its tests, each in a process that is forked from one without the
    candidate's code.
    """

    def __init__(self, asked, protections):
        self.asked, self.tree, self.protections = asked, asked["tree"], protections
        self.separate = prepare(asked["tree"], asked["home"], asked["gone"])
        paths = asked["tests"]["files"]
        # as it must be
        self.seen = {path: self.signature(path) for path in paths if self.signature(path)}
        protections["separate_user"] = self.separate
        protections["no_capabilities"] = in_child(self.confine)

    def judge(self):
        """Return the end of the installation, and the end of each group of tests."""
        answer = {"protections": self.protections, "installed": None, "runs": []}
        install = self.asked["install"]
        if install is not None:
            answer["installed"] = installed = self.install(install["args"], install["timeout_s"])
            if installed["exit_code"] != 0 or installed["timed_out"]:
                return answer
        # what is left ends with the container
        answer["runs"] = list(self.test(self.asked["tests"]))
        return answer

    def test(self, tests):
        """Yield the start of the test runner, and the end of each group of tests until there is
        none.
        """
        try:
            problem = self.write_files({"ids": [], "changed": {}}, tests["variations"])
            server = None if problem else Server(self)
        except OSError as error:
            problem = str(error)
        if problem:
            yield {"exit_code": 127, "timed_out": False, "output": problem}
            return
        deadline = time.monotonic() + tests["total_s"]
        yield self.ask(server, tests["common"], tests["timeout_s"])
        for run in tests["runs"]:
            if server.alive:
                left = max(0.0, min(tests["timeout_s"], deadline - time.monotonic()))
                yield self.run(server, run, left)

    def install(self, args, timeout_s):
        """Run the program that installs the state; return its end."""
        try:
            process = self.popen(args)
        except OSError as error:
            return {"exit_code": 127, "timed_out": False, "output": str(error)}
        output = Tail(process.stdout.fileno(), TAIL_BYTES)
        process.stdin.close()
        timed_out = not ended(process, output, timeout_s)
        self.end_all()
        process.wait()
        return {"exit_code": process.returncode, "timed_out": timed_out, "output": output.text()}

    def run(self, server, run, timeout_s):
        """Run one group of tests in a process of its own, with its files as they must be."""
        own = {name.partition("::")[0] for name in run["ids"]}.union(run["changed"])
        problem = self.write_files(run, own.intersection(self.asked["tests"]["files"]))
        if problem:
            return {"exit_code": -1, "timed_out": False, "output": problem}
        return self.ask(server, {"ids": run["ids"], "cut": run["cut"]}, timeout_s)

    def ask(self, server, question, timeout_s):
        """Write a line for the fork server; return the end that it reports for it, when nothing
        else is left.
        """
        ended_as = server.ask(question, timeout_s)
        if server.has_children:
            self.end_all(server.process.pid)
        return dict(ended_as, **server.take())

    def write_files(self, run, own):
        """Write a run's own files, and others that may have changed, as the candidate; return the
        problem, or "".
        """
        files = self.asked["tests"]["files"]
        changed = {
            path
            for path in files
            if path not in self.seen or self.signature(path) != self.seen[path]
        }
        wanted = {path: self.varied(path, run) for path in changed.union(own)}
        if not in_child(lambda: self.confine() or True, lambda: write_all(self.tree, wanted)):
            return "the files of the tests could not be written: the candidate took their place"
        self.seen.update((path, self.signature(path)) for path in wanted)
        for path in own if run["ids"] else ():
            del self.seen[path]
        return ""

    def varied(self, path, run):
        """Return the text of a file for a run: changed where that is a control, and varied at
        random elsewhere.
        """
        tests = self.asked["tests"]
        varies = tests["variations"].get(path, {"breaks": [], "ends": []})
        names = {name.partition("[")[0].rpartition("::")[2] for name in run["ids"]}
        edits = list(run["changed"].get(path, ()))
        edits += [
            edit for name, edit in varies["breaks"] if name not in names and CHANCE.getrandbits(1)
        ]
        always = CHANCE.choice(varies["ends"] or [-1])  # no run has the original bytes
        edits += [
            (end, end, " " * CHANCE.randint(end == always, MOST_SPACES)) for end in varies["ends"]
        ]
        parts, at = [], 0
        for start, end, new in sorted(map(tuple, edits)):
            parts += [tests["files"][path][at:start], new]
            at = end
        return "".join(parts) + tests["files"][path][at:]

    def signature(self, path):
        """Return facts that differ after each change of a file: only root can set the time of the
        last change.
        """
        try:
            found = os.lstat(os.path.join(self.tree, path))
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mode

    def popen(self, args, descriptors=()):
        """Start a program of the candidate."""
        environment = dict(os.environ)
        environment.update(self.asked["env"])
        environment["PATH"] = (
            os.path.join(self.tree, ".venv/bin") + ":" + environment.get("PATH", os.defpath)
        )
        process = subprocess.Popen(
            args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.tree,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
            preexec_fn=self.confine,  # noqa: PLW1509 - its threads hold no lock that this needs
        )
        STARTED.add(process.pid)
        return process

    def confine(self):
        """Give up everything that this process may do and the candidate may not; return whether
        that worked.
        """
        if self.separate:
            become_candidate()
        prctl(NO_NEW_PRIVS, 1)
        return self.separate or drop_capabilities()

    def end_all(self, *kept):
        """Kill all processes of the candidate except one."""
        if self.separate and not kept:
            for _ in range(3):  # what forks while it is killed is met by the next round
                in_child(self.confine, kill_as_candidate)
                time.sleep(0.01)
            return
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            left = descendants(os.getpid()) - set(kept)
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.002)
        for pid in kept:  # what cannot be ended must not see another test
            os.kill(pid, signal.SIGKILL)


def in_child(*steps):
    """Run steps in a child until one returns False; return whether all of them worked."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(any(step() is False for step in steps))
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def become_candidate():
    """Become the candidate's user."""
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)


def kill_as_candidate():
    """Kill all processes of the candidate's user, this one too; as any other user, kill nothing."""
    if UID != 0 and os.getresuid() == (UID, UID, UID):
        os.kill(-1, signal.SIGKILL)


def prepare(tree, home, gone):
    """Take away what the state lacks; give tree and home to another user; return whether there is
    one.
    """
    for path in gone:
        try:
            os.unlink(os.path.join(tree, path))
        except OSError:
            pass
    shutil.rmtree(home, ignore_errors=True)
    os.makedirs(home)
    if os.getuid() != 0:
        return False
    try:
        for path in (tree, home):
            give(path, UID)
    except OSError:
        pass
    separate = in_child(become_candidate, lambda: os.access(tree, os.R_OK | os.W_OK | os.X_OK))
    if not separate:
        for path in (tree, home):
            give(path, 0)
    return separate


def give(tree, owner):
    """Give a tree to a user, following no link."""
    os.lchown(tree, owner, owner)
    for directory, names, files in os.walk(tree):
        for name in names + files:
            os.lchown(os.path.join(directory, name), owner, owner)


def drop_capabilities():
    """Give up all capabilities for good, also those that root gets when it starts a program."""
    for number in range(64):
        prctl(BOUNDING, number)
    prctl(AMBIENT, 4)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    try:
        return ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) == 0
    except (AttributeError, OSError):
        return False


def write_all(tree, contents):
    """Write files below a tree."""
    for path, text in contents.items():
        write_file(os.path.join(tree, path), text)


def write_file(path, text):
    """Write a file anew, whatever the candidate put there, and remove compiled files beside it."""
    directory, mode = os.path.dirname(path), 0o644
    os.makedirs(directory, exist_ok=True)
    if os.path.isfile(path):
        mode = os.stat(path).st_mode & 0o777
    for gone in (path, os.path.join(directory, "__pycache__")):
        if os.path.isdir(gone) and not os.path.islink(gone):
            shutil.rmtree(gone)
        elif os.path.lexists(gone):
            os.unlink(gone)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(text.encode("utf-8", "surrogateescape"))


def descendants(root):
    """Return the processes below a process; orphans are below it too, because it is their
    reaper.
    """
    below = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            below.setdefault(int(parent), set()).add(int(name))
        elif int(parent) == root and int(name) not in STARTED:
            os.waitpid(int(name), os.WNOHANG)  # an orphan
    found, more = set(), {root}
    while more:
        more = {child for pid in more for child in below.get(pid, ())} - found
        found |= more
    return found


class Server:
    """The process from which each group of tests is forked; it has the test runner, and no code of
    the candidate.
    """

    def __init__(self, judge):
        # this end stays open here, so that the pipe never ends
        report_in, self.report_out = os.pipe()
        self.status_in, status_out = os.pipe()
        tests = judge.asked["tests"]
        args = [*tests["args"], str(self.report_out), str(status_out)]
        self.process = judge.popen(args, (self.report_out, status_out))
        os.close(status_out)
        self.report, self.output = (
            Tail(report_in, REPORT_BYTES),
            Tail(self.process.stdout.fileno(), TAIL_BYTES),
        )
        self.alive = self.has_children = True

    def ask(self, question, timeout_s):
        """Write a line for the process, which it may not read; return the end that it reports for
        it.
        """
        for tail in (self.report, self.output):
            del tail.kept[:]
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.alive = False
        line, timed_out = self.status(timeout_s)
        code, _, left = line.strip().partition(b" ")
        self.has_children = left != b"0"  # of it, or orphans: it is their reaper
        return {
            "exit_code": int(code) if code.lstrip(b"-").isdigit() else -1,
            "timed_out": timed_out,
        }

    def status(self, timeout_s):
        """Return the line that reports an end, and whether it did not come in time."""
        line, deadline = b"", time.monotonic() + timeout_s
        while self.alive and not line.endswith(b"\n"):
            wanted = [self.status_in] + [tail for tail in (self.report, self.output) if tail.open]
            ready = select.select(wanted, [], [], max(0.0, deadline - time.monotonic()))[0]
            for tail in ready:
                if tail is not self.status_in:
                    tail.read()
            if self.status_in in ready:
                more = os.read(self.status_in, 64)
                line, self.alive = line + more, bool(more)
            if not ready or time.monotonic() > deadline:
                self.alive = False
                return b"", True
        return line, False

    def take(self):
        """Return all that was reported and printed for the last line; nobody may be left who
        writes.
        """
        return {"report": self.report.text(), "output": self.output.text()}


class Tail:
    """The last bytes of what comes through a pipe."""

    def __init__(self, descriptor, limit):
        self.descriptor, self.limit, self.kept, self.open = descriptor, limit, bytearray(), True
        os.set_blocking(descriptor, False)

    def fileno(self):
        """Return the descriptor, for select."""
        return self.descriptor

    def read(self):
        """Read what is there; return whether there may be more."""
        try:
            chunk = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return False
        self.open = bool(chunk)
        self.kept += chunk
        del self.kept[: -self.limit]
        return self.open

    def text(self):
        """Return the last bytes as text."""
        while self.read():
            pass
        return bytes(self.kept).decode("utf-8", "replace")


def ended(process, output, timeout_s):
    """Wait for a process, and read its output meanwhile; return whether it ended by itself."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        if output.open:
            select.select([output], [], [], 0.02)
            output.read()
        else:
            time.sleep(0.02)
    return True


if __name__ == "__main__":
    main()
