"""The page about a run of 10,000 generations in Chromium: time to the first paint, sizes, and time
to write it.

.venv/bin/python -m tests.bench.report [--generations 10000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import attrs

from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.report.page.generations import LoopRun
from hyperruntime.report.page.page import write_page
from hyperruntime.secrets.known import Secrets
from tests.bench.measure import Row, machine, seconds
from tests.bench.page import document
from tests.browser.conftest import Browser
from tests.doubles.shown_runs import loop_run

_PAINT = (
    "const [p] = performance.getEntriesByName('first-contentful-paint'); return p ? p.startTime "
    ": null"
)


def first_paint_ms(browser: Browser, path: Path) -> float:
    """Return the milliseconds from the navigation to the first contents. Source: W3C, Paint
    Timing.
    """
    browser.driver.get("about:blank")
    browser.driver.get(path.as_uri())
    while (found := browser.run(_PAINT)) is None:
        time.sleep(0.05)
    return float(found)


def rows(count: int, rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = LoopRun(load_run(loop_run(folder / "run", count)), Secrets({}))
        bare = LoopRun(load_run(loop_run(folder / "bare", count, with_files=False)), Secrets({}))
        page, records = folder / "page.html", folder / "records.html"
        took = seconds(lambda: write_page([run], page))
        left_out = write_page([bare], records, max_bytes=5_000_000).left_out
        browser = Browser()
        try:
            browser.view()
            paints = [first_paint_ms(browser, page) for _ in range(rounds)]
            alone = [first_paint_ms(browser, records) for _ in range(rounds)]
            table = browser.run(
                "const t = performance.now(); state.table.choose(5); return performance.now() - t"
            )
        finally:
            browser.driver.quit()
        paint = statistics.median(paints)
        return [
            Row(what=f"first paint, {count} generations with details", value=paint, unit="ms",
                compared_to=f"records and scores alone: {statistics.median(alone):.0f} ms", wanted="at most 1000 ms",
                holds=paint <= 1000),
            Row(what="size of records and scores", value=records.stat().st_size / 1e6, unit="MB", wanted="at most 5 MB",
                holds=records.stat().st_size <= 5e6),
            Row(what=f"size of the page, {left_out} entries without details in the smaller one",
                value=page.stat().st_size / 1e6, unit="MB", wanted="at most 50 MB", holds=page.stat().st_size <= 50e6),
            Row(what="time to write the page", value=took, unit="s"),
            Row(what="choosing a row", value=float(table), unit="ms"),
        ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.report", description=__doc__)
    parser.add_argument("--generations", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found = rows(given.generations, given.rounds)
    shown = [attrs.asdict(row) for row in found]
    print(document({"title": "The page about a run", "machine": machine(), "rows": shown}))
    return 0 if all(row.holds is not False for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
