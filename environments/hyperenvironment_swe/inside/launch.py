"""Fork a process for each group of tests and report its end: started by the judge of the
environment swe.

Started as ``python -c SOURCE REPORT STATUS`` in the root of the tree. It reads what all groups
share, imports the test runner and nothing of the tree. Then it forks for each line on standard
input; only the child reads the line, which has test ids, and imports code of the candidate. It
holds no secret, and cannot know which groups are controls. Runs with Python 3.6 or newer.
"""

import ctypes
import gc
import json
import os
import re
import select
import sys
from importlib import import_module
from importlib.util import find_spec

DUMPABLE, SUBREAPER = 4, 36
OLDEST_TRIED = 6  # of pytest; with an older one, each child starts it from the beginning


def main():
    """Prepare, then fork for each line."""
    report, status = map(int, sys.argv[1:])
    prctl(DUMPABLE, 0)  # children are the same user: they must not trace or write to this process
    prctl(SUBREAPER, 1)
    for descriptor in (report, status):
        os.set_inheritable(descriptor, False)
    sys.argv[1:] = []
    sys.path[:] = [path for path in sys.path if path]
    asked = json.loads(read_line())
    code = 3
    try:
        code = {"pytest": run_pytest, "unittest": run_unittest}[asked["runner"]](
            asked, sender(report), status
        )
        sys.stdout.flush()
    finally:
        os._exit(code)  # without what the candidate wants to do at exit


def prctl(option, value):
    """Set an attribute of this process, if that is possible."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (AttributeError, OSError):
        pass


def read_line():
    """Read one line from standard input, and no more; there is never a second one yet."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            os._exit(0)
        line += more
    return line.decode()


def has_line():
    """Wait for a line; return whether there is one."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll()[0][1] & select.POLLIN)


def fork_for_each_line(status):
    """Fork for each line; return what it asks, but only in a child. The process itself ends with
    its input.
    """
    gc.collect()
    getattr(gc, "freeze", int)()  # children then copy less memory
    code = 0
    while True:
        os.write(status, b"%d %d\n" % (code, has_children()))
        if not has_line():
            os._exit(0)
        child = os.fork()
        if child == 0:
            os.close(status)
            os.setsid()
            prctl(DUMPABLE, 1)
            asked = json.loads(read_line())
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin = open(0)
            sys.path.insert(0, os.getcwd())  # as python -m pytest does
            return asked
        code = wait_for(child)


def wait_for(child):
    """Wait for a child; return its exit code, negative for a signal."""
    while True:
        ended, code = os.wait()
        if ended == child:
            return -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)


def has_children():
    """Return whether anything is left of the processes that a group of tests started."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def sender(descriptor):
    """Return a function that writes one line of the report, and keeps whether anything failed."""

    def send(**facts):
        send.failed |= facts.get("outcome") == "failed" or facts["kind"] == "collect"
        line = (json.dumps(facts) + "\n").encode("utf-8", "replace")
        while line:
            line = line[os.write(descriptor, line) :]

    send.failed = False
    return send


def run_pytest(asked, send, status):
    """Run each group of ids by pytest, with the settings of the untouched repository; return the
    exit code of one.
    """
    try:
        import _pytest.config
        import pytest
    except ImportError as error:
        send(kind="missing", text="%s has no pytest: %s" % (sys.executable, error))
        return 0
    for name in _pytest.config.default_plugins:
        import_module("_pytest." + name)
    send(kind="runner", version=pytest.__version__)
    args = [
        "-c",
        asked["settings"],
        "--rootdir",
        os.getcwd(),
        "--maxfail=0",
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    args += [
        word for name in foreign_plugins(asked["own_plugins"]) for word in ("-p", "no:" + name)
    ]
    if find_spec("xdist") is not None and not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        args += ["-n", "0"]  # what runs in other processes reports to nobody
    cut = set()

    def next_ids():
        group = fork_for_each_line(status)
        cut.update(group["cut"])
        # none is an option
        return ["./" + (name.partition("[")[0] if name in cut else name) for name in group["ids"]]

    reporter = make_reporter(send, cut)
    if starts_without_tree(pytest, args, asked):
        code = pytest.main(args, plugins=[reporter, before_conftests(pytest, next_ids)])
    else:
        code = pytest.main(args + next_ids(), plugins=[reporter])
    return 1 if send.failed else 0 if code in (0, 1) else int(code)


def before_conftests(pytest, next_ids):
    """Return a plugin that asks for ids when pytest has loaded its other plugins, which takes most
    of its start.
    """

    class Late(object):
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_load_initial_conftests(self, early_config, args):
            names = next_ids()
            early_config.known_args_namespace.file_or_dir = names
            args += names
            yield

    return Late()


def starts_without_tree(pytest, args, asked):
    """Try in a child whether pytest loads its plugins, and with them nothing of the tree."""
    with open(asked["settings"], "rb") as file:
        names_plugins = re.search(rb"(?<![\w-])-p(?!\s*no:)", file.read())
    if (
        names_plugins
        or asked["own_plugins"]
        or int(pytest.__version__.partition(".")[0]) < OLDEST_TRIED
    ):
        return False
    child = os.fork()
    if child == 0:
        try:
            pytest.main(args, plugins=[before_conftests(pytest, lambda: os._exit(int(has_tree())))])
        finally:
            os._exit(1)
    return wait_for(child) == 0


def has_tree():
    """Return whether a module of the tree is imported."""
    files = [
        os.path.realpath(one.__file__)
        for one in list(sys.modules.values())
        if getattr(one, "__file__", None)
    ]
    return any(is_below(file, os.getcwd()) and not is_below(file, sys.prefix) for file in files)


def foreign_plugins(own_plugins):
    """Return the plugins of pytest that come with the tree itself, unless the untouched tree brings
    some too.
    """
    try:
        from importlib.metadata import distributions
    except ImportError:
        return []
    names = []
    for distribution in () if own_plugins else distributions():
        path = os.path.realpath(str(distribution.locate_file("")))
        # PEP 610
        from_directory = '"dir_info"' in (distribution.read_text("direct_url.json") or "")
        if from_directory or (is_below(path, os.getcwd()) and not is_below(path, sys.prefix)):
            names += [
                point.name for point in distribution.entry_points if point.group == "pytest11"
            ]
    return names


def is_below(path, directory):
    """Return whether a real path is in a directory."""
    return (path + os.sep).startswith(os.path.realpath(directory) + os.sep)


def make_reporter(send, cut):
    """Return a plugin that sends what became of each test; an id in ``cut`` ends at a space in its
    parameters.
    """

    class Reporter(object):
        def pytest_runtest_logreport(self, report):
            start = report.nodeid.split(" ")[0]
            name = start if start in cut else report.nodeid
            text = "" if report.outcome == "passed" else str(report.longrepr)[-2000:]
            odd = hasattr(report, "wasxfail")
            send(
                kind="test", id=name, when=report.when, outcome=report.outcome, xfail=odd, text=text
            )

        def pytest_collectreport(self, report):
            if report.outcome == "failed":
                send(kind="collect", id=report.nodeid, text=str(report.longrepr)[-2000:])

    return Reporter()


def run_unittest(asked, send, status):
    """Run each group of ids of the form ``path.py::Class::method`` by unittest, which every Python
    has.
    """
    import unittest

    send(kind="runner", version=sys.version.split()[0])

    class Result(unittest.TestResult):
        def __init__(self, name):
            unittest.TestResult.__init__(self)
            self.name = name

        def stopTest(self, test):
            unittest.TestResult.stopTest(self, test)
            bad = self.failures + self.errors
            plain = not (self.skipped or self.expectedFailures or self.unexpectedSuccesses)
            outcome = "failed" if bad else "passed" if plain else "skipped"
            text = bad[0][1][-2000:] if bad else ""
            send(kind="test", id=self.name, when="call", outcome=outcome, xfail=False, text=text)

    for name in fork_for_each_line(status)["ids"]:
        try:
            case = unittest_case(name, unittest)
        except Exception as error:  # noqa: BLE001 - of code under test
            send(kind="collect", id=name, text="%s: %s" % (type(error).__name__, error))
            continue
        unittest.TestSuite([case]).run(Result(name))  # a suite sets classes and modules up too
    return 1 if send.failed else 0


def unittest_case(name, unittest):
    """Return the test of an id, its file imported under the name that its path gives it."""
    path, case, method = name.split("::")
    module = import_module(path[: -len(".py")].replace("/", "."))
    made = getattr(module, case)
    if not issubclass(made, unittest.TestCase):
        raise TypeError("%s is no TestCase" % case)
    return made(method)


main()
