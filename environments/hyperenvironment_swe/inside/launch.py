"""Run tests by id and report each of them by name, in the candidate's process.

Started as ``python -c SOURCE FD`` in the root of the tree, with one JSON object on standard input. The test runner is
imported before anything of the tree can be. Each line of the report begins with a secret that is in this process's
memory only. Runs with Python 3.6 or newer.
"""

import json
import os
import sys
import tempfile
from importlib.util import find_spec


def main():
    """Read what to run, and run it."""
    descriptor = int(sys.argv[1])
    asked = json.loads(sys.stdin.read())
    sys.stdin.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0)
    os.set_inheritable(descriptor, False)
    sys.argv[1:] = []
    sys.path[:] = [path for path in sys.path if path]
    send = sender(descriptor, asked["secret"])
    runners = {"pytest": run_pytest, "unittest": run_unittest}
    runners[asked["runner"]](asked, send)


def sender(descriptor, secret):
    """Return what writes one line of the report; it holds on to what it needs."""
    write, dumps = os.write, json.dumps

    def send(**facts):
        line = (secret + dumps(facts) + "\n").encode("utf-8", "replace")
        while line:
            line = line[write(descriptor, line) :]

    return send


def run_pytest(asked, send):
    """Run ids by pytest, with the settings of the untouched repository."""
    try:
        import pytest
    except ImportError as error:
        return send(kind="missing", text="%s has no pytest: %s" % (sys.executable, error))
    send(kind="runner", version=pytest.__version__)
    if not asked["ids"]:
        return None
    sys.path.insert(0, os.getcwd())  # as python -m pytest does
    args = ["-c", write_settings(*asked["settings"]), "--rootdir", os.getcwd()]
    args += ["--maxfail=0", "-p", "no:cacheprovider", "-q"]
    args += [word for name in foreign_plugins(asked["own_plugins"]) for word in ("-p", "no:" + name)]
    if find_spec("xdist") is not None:
        args += ["-n", "0"]  # what runs in other processes reports to nobody
    cut = set(asked.get("cut", ()))  # ids that end at a space in their parameters: each is all tests that begin so
    names = [name.partition("[")[0] if name in cut else name for name in asked["ids"]]
    args += ["./" + name for name in names]  # so that none is an option
    pytest.main(args, plugins=[make_reporter(pytest, send, asked["controls"], cut)])
    return None


def write_settings(suffix, content):
    """Write pytest's settings to a file at the root of the tree, where relative paths in them are right."""
    descriptor, path = tempfile.mkstemp(suffix, ".settings-", os.getcwd())
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode("utf-8"))
    return path


def foreign_plugins(own_plugins):
    """Return the plugins of pytest that come with the tree itself, unless the untouched tree brings some too."""
    try:
        from importlib.metadata import distributions
    except ImportError:
        return []
    names = []
    for distribution in () if own_plugins else distributions():
        path = os.path.realpath(str(distribution.locate_file("")))
        from_directory = '"dir_info"' in (distribution.read_text("direct_url.json") or "")  # PEP 610
        if from_directory or (is_below(path, os.getcwd()) and not is_below(path, sys.prefix)):
            names += [point.name for point in distribution.entry_points if point.group == "pytest11"]
    return names


def is_below(path, directory):
    """Tell whether a real path is in a directory."""
    return (path + os.sep).startswith(os.path.realpath(directory) + os.sep)


def make_reporter(pytest, send, controls, cut):
    """Return a plugin that sends what became of each test, and adds tests that must fail.

    Who makes everything pass makes those pass too.
    """

    def control():
        raise AssertionError("a control")

    def make(parent, name):
        build = getattr(pytest.Function, "from_parent", None)
        if build is None:  # before pytest 5.4
            return pytest.Function(name, parent, callobj=control)
        return build(parent, name=name, callobj=control)

    class Reporter(object):
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session, items):
            modules = [item.parent for item in items if type(item.parent) is pytest.Module]
            made = [make((modules or [session])[0], name) for name in controls]
            items[:0] = made[: len(made) // 2]
            items += made[len(made) // 2 :]

        def pytest_runtest_logreport(self, report):
            last = report.nodeid.rpartition("::")[2]
            start = report.nodeid.split(" ")[0]
            name = last if last in controls else start if start in cut else report.nodeid
            text = "" if report.outcome == "passed" else str(report.longrepr)[-2000:]
            odd = hasattr(report, "wasxfail")
            send(kind="test", id=name, when=report.when, outcome=report.outcome, xfail=odd, text=text)

        def pytest_collectreport(self, report):
            if report.outcome == "failed":
                send(kind="collect", id=report.nodeid, text=str(report.longrepr)[-2000:])

    return Reporter()


def run_unittest(asked, send):
    """Run ids of the form ``path.py::Class::method`` by unittest, which every Python has."""
    import unittest

    send(kind="runner", version=sys.version.split()[0])
    sys.path.insert(0, os.getcwd())

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

    def control(name):
        case = type("Case", (unittest.TestCase,), {name: lambda self: self.fail("a control")})(name)
        unittest.TestSuite([case]).run(Result(name))

    half = len(asked["controls"]) // 2
    for name in asked["controls"][:half]:
        control(name)
    for name in asked["ids"]:
        try:
            case = unittest_case(name, unittest)
        except Exception as error:  # noqa: BLE001 - of code under test
            send(kind="collect", id=name, text="%s: %s" % (type(error).__name__, error))
            continue
        unittest.TestSuite([case]).run(Result(name))  # a suite sets classes and modules up too
    for name in asked["controls"][half:]:
        control(name)


def unittest_case(name, unittest):
    """Return the test of an id, its file imported under the name that its path gives it."""
    import importlib

    path, case, method = name.split("::")
    module = importlib.import_module(path[: -len(".py")].replace("/", "."))
    made = getattr(module, case)
    if not issubclass(made, unittest.TestCase):
        raise TypeError("%s is no TestCase" % case)
    return made(method)


main()
