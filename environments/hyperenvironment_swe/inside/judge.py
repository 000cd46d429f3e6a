"""Run one command of a candidate in a fresh container, as another user, and hand on what it reported.

Started as ``python3 -I -c SOURCE`` with one JSON object on standard input; prints one. It runs with whatever Python an
image has, 3.6 or newer, and needs nothing but that. The candidate is another uid wherever that can be had: it can then
neither read this process nor write what it prints.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

UID = 61234
TAIL_BYTES = 20000
REPORT_BYTES = 32 * 1024 * 1024
GRACE_S = 5.0


def main():
    """Do what is asked, and print what came of it."""
    asked = json.load(sys.stdin)
    answer = {"prepare": prepare, "run": run}[asked["do"]](asked)
    json.dump(answer, sys.stdout)


def prepare(asked):
    """Take away what the state lacks and give the tree, and a home, to the candidate's user."""
    tree, home = asked["tree"], asked["home"]
    for path in asked["gone"]:
        try:
            os.unlink(os.path.join(tree, path))
        except OSError:
            pass
    shutil.rmtree(home, ignore_errors=True)
    os.makedirs(home)
    if os.getuid() == 0:
        try:
            for path in (tree, home):
                give(path)
        except OSError:
            pass
    separate = may_change_user(tree)
    if os.getuid() == 0 and not separate:
        for path in (tree, home):
            give(path, 0)
    return {"separate": separate}


def may_change_user(tree):
    """Tell whether a child of this process can be another user, and write the tree."""
    if os.getuid() != 0:
        return False
    child = os.fork()
    if child == 0:
        try:
            become_candidate()
            os.listdir(tree)
            os._exit(0 if os.access(tree, os.W_OK) else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def become_candidate():
    """Give up everything that this process may do and the candidate may not."""
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)


def give(tree, owner=UID):
    """Give a tree to the candidate, following no link."""
    os.lchown(tree, owner, owner)
    for directory, names, files in os.walk(tree):
        for name in names + files:
            os.lchown(os.path.join(directory, name), owner, owner)


def run(asked):
    """Run a command to its end or its deadline; return its end, the tail of its output and its report."""
    separate = may_change_user(asked["tree"])
    report_in, report_out = os.pipe()
    words = [str(report_out) if word == "{fd}" else word for word in asked["args"]]
    environment = dict(os.environ)
    environment.update(asked["env"])
    environment["PATH"] = os.path.join(asked["tree"], ".venv/bin") + ":" + environment.get("PATH", os.defpath)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=asked["tree"],
            env=environment,
            pass_fds=[report_out],
            start_new_session=True,
            preexec_fn=become_candidate if separate else None,  # noqa: PLW1509 - no thread yet
        )
    except OSError as error:
        return {"exit_code": 127, "timed_out": False, "output": str(error), "report": ""}
    os.close(report_out)
    output, report = Reader(process.stdout.fileno(), TAIL_BYTES, False), Reader(report_in, REPORT_BYTES, True)
    feeder = threading.Thread(target=feed, args=(process.stdin, asked["input"].encode()), daemon=True)
    feeder.start()
    timed_out = not ended(process, asked["timeout_s"])
    end_all(process, separate)
    process.wait()
    for reader in (output, report):
        reader.thread.join(GRACE_S)
    return {
        "exit_code": process.returncode,
        "timed_out": timed_out,
        "output": bytes(output.kept).decode("utf-8", "replace"),
        "report": bytes(report.kept).decode("utf-8", "replace"),
    }


def ended(process, timeout_s):
    """Wait for a process; tell whether it ended by itself."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def end_all(process, separate):
    """Kill all that the candidate runs, what hides in other sessions included."""
    if not separate:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        return
    for _ in range(3):  # what forks while it is killed is met by the next round
        child = os.fork()
        if child == 0:
            become_candidate()
            os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.01)


def feed(pipe, data):
    """Write a candidate's input; it may not read it."""
    try:
        pipe.write(data)
        pipe.close()
    except OSError:
        pass


class Reader:
    """Reads a descriptor to its end in a thread, and keeps a part: the first bytes, or the last."""

    def __init__(self, descriptor, limit, first):
        self.kept = bytearray()
        self.thread = threading.Thread(target=self.read, args=(descriptor, limit, first), daemon=True)
        self.thread.start()

    def read(self, descriptor, limit, first):
        """Read until nobody can write any more."""
        while True:
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return
            if first:
                self.kept += chunk[: max(0, limit - len(self.kept))]
            else:
                self.kept += chunk
                del self.kept[:-limit]


main()
