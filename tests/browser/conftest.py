"""A headless Chromium; a message of an error in its console fails the test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip

# Open entries one after another with all that is folded. At the end, an image that cannot be loaded
# has its event of an error: those of earlier images, which a text of an agent would have made, came
# before it.
OPEN_ALL = """
    const [titles] = given, panel = places.panel;
    let opened = 0;
    for (const [n, title] of titles.entries()) {
        await new Promise((done) => {
            const look = new MutationObserver(() => {
                if (!panel.querySelector("h2")?.textContent.startsWith(title)) return;
                look.disconnect();
                done();
            });
            look.observe(panel, { childList: true });
            state.table.choose(n);
        });
        for (const one of panel.querySelectorAll("details")) one.open = true;
        opened += 1;
    }
    const last = new Image();
    await new Promise((done) => { last.onerror = done; last.src = "data:image/png;base64,"; });
    return opened;
"""


class Browser:
    """A browser that a test drives.

    Attributes:
        driver: of selenium.
    """

    def __init__(self, *, scripts: bool = True, waits: bool = True) -> None:
        """Start it.

        Args:
            scripts: whether pages may run scripts.
            waits: whether the driver waits until a page is loaded.
        """
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for option in _OPTIONS:
            options.add_argument(option)
        if not scripts:
            options.add_experimental_option(
                "prefs", {"profile.managed_default_content_settings.javascript": 2}
            )
        if not waits:
            options.page_load_strategy = "none"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(
            options=options, service=Service(shutil.which("chromedriver") or "chromedriver")
        )
        self.driver.set_page_load_timeout(60)
        self.driver.set_script_timeout(120)

    def view(self, *, width: int = 1280, dark: bool = False) -> None:
        """Set the width of the window in pixels, and the colours that the user prefers."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})

    def open(self, url: str) -> None:
        """Open a page and wait until all of it is there; the driver alone now and then returns
        before that.
        """
        from selenium.webdriver.support.wait import WebDriverWait

        self.run("window.isLeft = true")
        self.driver.get(url)
        is_there = "return !window.isLeft && document.readyState === 'complete'"
        WebDriverWait(self.driver, 60).until(lambda _: self.run(is_there))

    def run(self, script: str, *args: object) -> Any:
        """Run a script in the page and return its value."""
        return self.driver.execute_script(script, *args)

    def run_async(self, script: str, *args: object) -> Any:
        """Run the body of an asynchronous function of ``given`` in the page; return what it
        returns.
        """
        body = (
            f"const run = async (given) => {{ {script} }}, done = arguments[arguments.length - 1];"
        )
        return self.driver.execute_async_script(
            f"{body} run([...arguments]).then(done, (e) => done(`${{e}}`))", *args
        )

    def errors(self) -> list[str]:
        """Return what the console has got since the last call."""
        entries: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]


@pytest.fixture(scope="session")
def started() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    started.driver.get("about:blank")
    started.view()
    started.errors()
    yield started
    assert started.errors() == []
