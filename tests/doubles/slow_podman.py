"""A ``podman`` that is slow: it waits before a command, or after its end, and is the real one apart
from that.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

Seconds = tuple[float, float]
ANY = "*"
# The second word of the options in the list is their value. Source: podman(1).
_PROGRAM = """#!{python} -IS
import json, math, os, random, signal, subprocess, sys, time

folder = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(folder, "rules.json")) as file:
    rules = json.load(file)
words, verb = sys.argv[1:], ""
while words and not verb:
    word = words.pop(0)
    if word in ("--runtime", "--log-level"):
        words.pop(0)
    elif not word.startswith("-"):
        verb = word


def pause(kind):
    low, high = rules[kind].get(verb) or rules[kind].get("*") or (0, 0)
    if high:
        time.sleep(math.exp(random.uniform(math.log(low), math.log(high))))


with open(os.path.join(folder, "calls"), "a") as file:
    file.write(verb + "\\n")
pause("before")
if verb in rules["fails"]:
    sys.exit("Error: " + rules["fails"][verb])
if verb not in rules["after"]:
    os.execv({podman!r}, ["podman", *sys.argv[1:]])
code = subprocess.run([{podman!r}, *sys.argv[1:]]).returncode
pause("after")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class SlowPodman:
    """The program, which has no delays until :meth:`change`.

    Attributes:
        path: the value of ``PATH`` with the program before the real one.
    """

    def __init__(self, folder: Path) -> None:
        """Write the program into a new directory."""
        self._folder = folder
        folder.mkdir()
        self.path = f"{folder}:{os.environ['PATH']}"
        program = folder / "podman"
        program.write_text(_PROGRAM.format(python=sys.executable, podman=shutil.which("podman")))
        program.chmod(0o755)
        self.change()

    def change(
        self,
        *,
        before: Mapping[str, Seconds] | None = None,
        after: Mapping[str, Seconds] | None = None,
        fails: Mapping[str, str] | None = None,
    ) -> None:
        """Set the delays and failures of all later calls.

        Args:
            before: least and most seconds before a command runs, by its verb or :data:`ANY`; drawn
                for each call, so that delays of each order of magnitude are equally likely.
            after: the same after its end, while its output stays open.
            fails: the message of commands that fail, by verb.
        """
        rules = {
            "before": dict(before or {}),
            "after": dict(after or {}),
            "fails": dict(fails or {}),
        }
        new = self._folder / "rules.new"
        new.write_text(json.dumps(rules))
        new.replace(self._folder / "rules.json")

    def count(self, verb: str) -> int:
        """Return how often a command was called."""
        calls = self._folder / "calls"
        return calls.read_text().split().count(verb) if calls.exists() else 0
