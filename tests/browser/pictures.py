"""Draw the pictures of the documentation: the report and the live page of a real run, and the
site's first page.

.venv/bin/python -m tests.browser.pictures [--generations 25] [--run RUN_DIR] [--site DIR] [--to
docs/pictures]
"""

from __future__ import annotations

import argparse
import io
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import Browser

HYPERRUN = [sys.executable, "-m", "hyperruntime.cli"]
ROOT = Path(__file__).parents[2]
BUILD, SITE = ROOT / "scripts" / "docs", ROOT / "build" / "docs"
MOST_BYTES = 200_000
WAIT_S = 1800  # for the generations of a run on a busy machine
WIDE, NARROW = (1280, 1150), (390, 1250)
SAID = "watch it at "


class Camera:
    """Takes pictures of pages."""

    def __init__(self, folder: Path) -> None:
        self.browser, self._folder = Browser(), folder
        folder.mkdir(parents=True, exist_ok=True)

    def open(
        self,
        url: str,
        size: tuple[int, int],
        *,
        dark: bool = False,
        ready: str = "true",
        act: str = "",
    ) -> None:
        """Open a page, do something in it, and wait until it is ready."""
        self.browser.view(width=size[0], dark=dark)
        metrics = {
            "width": size[0],
            "height": size[1],
            "deviceScaleFactor": 1,
            "mobile": size[0] < 500,
        }
        self.browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.driver.get(url)
        if act:
            self.browser.run(act)
        self.wait(ready)

    def wait(self, ready: str) -> None:
        """Wait until an expression of the page holds, and the page has been painted since."""
        WebDriverWait(self.browser.driver, WAIT_S).until(
            lambda _: self.browser.run(f"return {ready}")
        )
        painted = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => "
            "done()))"
        )
        self.browser.driver.execute_async_script(painted)

    def shoot(self, name: str) -> None:
        """Write what the window shows as a small PNG file; an error in the page's console is an
        error here.
        """
        if errors := self.browser.errors():
            raise SystemExit(f"{name}: {errors}")
        picture = Image.open(io.BytesIO(self.browser.driver.get_screenshot_as_png())).convert("RGB")
        path = self._folder / f"{name}.png"
        for colours in (256, 128, 64):
            picture.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
            if path.stat().st_size <= MOST_BYTES:
                break
        print(f"{path}: {path.stat().st_size} bytes")


def shoot_report(camera: Camera, run_dir: Path, folder: Path) -> None:
    """Take pictures of the report."""
    page = folder / "report.html"
    subprocess.run([*HYPERRUN, "report", str(run_dir), "-o", str(page)], check=True)
    drawn = "document.querySelectorAll('canvas').length === 2"
    for size in (WIDE, NARROW):
        for dark in (False, True):
            camera.open(page.as_uri(), size, dark=dark, ready=drawn)
            camera.shoot(f"report-{'dark' if dark else 'light'}-{size[0]}")
    best = "state.table.choose(runs[0].path[runs[0].path.length - 1], false, true)"
    opened = "document.querySelector('pre.diff') !== null"
    camera.open(page.as_uri(), WIDE, act=best, ready=opened)
    camera.browser.run("document.querySelector('.panel').scrollIntoView()")
    camera.shoot("report-generation")


def run_and_shoot(camera: Camera, folder: Path, generations: int) -> Path:
    """Make a run, take a picture of its live page while it goes on, and return its directory."""
    command = [
        "generate",
        "--domains=circle_packing",
        f"--max-generation={generations}",
        "--seed=7",
    ]
    place = ["--output-dir-parent", str(folder), "--run-id", "pictures", "--watch"]
    process = subprocess.Popen([*HYPERRUN, *command, *place], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = next(
        line.strip().removeprefix(SAID) for line in process.stderr if line.startswith(SAID)
    )
    # so that the run does not wait for us
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    try:
        shoot_live(camera, address, generations)
    finally:
        process.send_signal(signal.SIGINT)  # nothing, if it has ended
        process.wait(300)
        reader.join(120)
        process.stderr.close()
    return folder / "generate_pictures"


def shoot_live(camera: Camera, address: str, generations: int) -> None:
    """Take a picture of the live page of a run, and wait until the run has ended."""
    made = f"runs[0].ids.length >= {generations * 2 // 3} && runs[0].state === 'running'"
    camera.open(address, WIDE, ready=made)
    camera.wait("document.querySelectorAll('canvas').length === 2")
    camera.shoot("live-1280")
    camera.wait("document.getElementById('connection').dataset.state === 'ended'")


def shoot_site(camera: Camera, site: Path | None) -> None:
    """Take a picture of the first page of a site; of None, build it, with the pictures that are
    there now.
    """
    if site is None:
        subprocess.run([BUILD], check=True)
    page = (site or SITE) / "index.html"
    if not page.is_file():
        raise SystemExit(
            f"{page} does not exist; name a built site, or leave --site out to build it"
        )
    camera.open(
        page.resolve().as_uri(), WIDE, ready="[...document.images].every((one) => one.complete)"
    )
    camera.shoot("site-1280")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description=__doc__)
    parser.add_argument("--generations", type=int, default=25)
    parser.add_argument(
        "--run", type=Path, help="a finished run; then there is no picture of a live page"
    )
    parser.add_argument("--site", type=Path, help="a built site; default: build it")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args()
    camera = Camera(given.to)
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            run_dir = given.run or run_and_shoot(camera, folder, given.generations)
            shoot_report(camera, run_dir, folder)
        shoot_site(camera, given.site)
    finally:
        camera.browser.driver.quit()


if __name__ == "__main__":
    main()
