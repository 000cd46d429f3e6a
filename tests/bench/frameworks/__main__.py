"""Measure one framework and print its table; `--json FILE` saves the rows, `--write FILE...` writes
the page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench.frameworks.contest import contest_rows
from tests.bench.measure import machine
from tests.bench.page import document

PAGE = Path("docs/benchmarks-frameworks.md")
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
        reports = [json.loads(Path(name).read_text()) for name in options.write]
        PAGE.write_text(HEAD + "".join(document(report) for report in reports))
        return 0
    report = measure(options.framework)
    print(document(report))
    if options.json:
        Path(options.json).write_text(json.dumps(report))
    return 0 if all(row["holds"] is not False for row in report["rows"]) else 1


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
    return {
        "title": contest.title,
        "short": name,
        "note": contest.note,
        "machine": f"{engines}; {machine()}; {load}",
        "rows": [attrs.asdict(row) for row in rows],
    }


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
