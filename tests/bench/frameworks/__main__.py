"""Measure one framework and print its table; `--json FILE` saves the rows, `--write FILE...` writes
the page.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench.frameworks.contest import contest_rows
from tests.bench.page import facts, finish, write

PAGE = "docs/benchmarks-frameworks.md"
HEAD = """# Benchmarks in frameworks

`make bench-frameworks` measures all of this again and writes this page: the same calls of a framework on its own
sandbox for Docker, and on ours on Podman and on Docker. The image is the same, and no container has a network unless
its framework needs one. All figures are medians. Compared calls run in turn in one process, so the ratios are more
reliable than the figures.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.frameworks", description=__doc__)
    parser.add_argument("framework", nargs="?", help="name of its integration, such as inspect_ai")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    parser.add_argument(
        "--write", metavar="FILE", nargs="+", help="only write the page, from files of --json"
    )
    options = parser.parse_args()
    if options.write:
        return write(PAGE, HEAD, options.write)
    return finish(measure(options.framework), options.json)


def measure(name: str) -> dict[str, Any]:
    """Return the report of a framework, whose environment this is."""
    module = importlib.import_module(f"tests.bench.frameworks.{name}")
    load = f"load average {os.getloadavg()[0]:.1f}"
    with hr.open_runtime("podman") as podman, hr.open_runtime("docker") as docker:
        image = podman.images.ensure("base")
        if docker.images.ensure("base") != image:
            raise AssertionError("the engines name the base image differently")
        engines = f"{_engine(podman)}; {_engine(docker)}"
        with module.contest(image) as contest:
            rows = contest_rows(contest)
    made = facts(contest.title, name, rows)
    return {**made, "note": contest.note, "machine": f"{engines}; {made['machine']}; {load}"}


def _engine(runtime: Runtime) -> str:
    info = runtime.info
    facts = [
        f"{runtime.name} {info.version}",
        "rootless" if info.rootless else "root",
        info.oci_runtime,
        info.storage,
    ]
    return ", ".join(fact for fact in facts if fact)


if __name__ == "__main__":
    sys.exit(main())
