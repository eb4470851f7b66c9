"""A real browser on the dashboard: the distribution's Chromium, headless, and what went wrong in its console."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PAGES = ("overview", "traces", "replay", "compare", "inspector", "capacity", "regressions", "jobs")
TRACES_OF_ERRORS = ("Traceback (most recent call last)", "Uncaught app execution", "This app has encountered an error")
# Streamlit's page asks for these below its own address first, and is told 404, before it finds the server's root.
PROBED = ("/_stcore/health", "/_stcore/host-config")
WAIT_MS = 30_000
SIZE = {"width": 1360, "height": 900}


def found() -> str:
    """Where the browser is. Skips the test where there is none, or nothing to drive it with."""
    pytest.importorskip("playwright", reason="Playwright is not installed: pip install 'kvmill[test]'")
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser on PATH ({', '.join(NAMES)}): apt-get install -y chromium")


@contextmanager
def started() -> Iterator[Any]:
    """A headless Chromium."""
    path = found()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """One visitor's page. `wrong` gathers errors of the console, of scripts, and requests to other hosts."""

    page: Any
    base: str
    pictures: Path
    theme: str
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        where = message.location.get("url", "")
        if message.type == "error" and not where.endswith(PROBED):
            self.wrong.append(f"{message.text} {where}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.base, self.base.replace("http", "ws", 1), "data:", "blob:")):
            self.wrong.append(f"asked another host: {request.url}")

    def open(self, name: str = "overview", **address: str) -> None:
        """A page by its address, once it is whole."""
        place = "" if name == "overview" else name
        self.page.goto(f"{self.base}/{place}" + (f"?{urlencode(address)}" if address else ""))
        self.page.locator("h1").first.wait_for(timeout=WAIT_MS)
        self.settle()

    def turn_to(self, title: str) -> None:
        """A page by its link at the side, as a visitor goes."""
        self.page.get_by_test_id("stSidebarNav").get_by_role("link", name=title, exact=True).click()
        self.settle()

    def settle(self) -> None:
        """Wait until the server has answered and nothing on the page is old."""
        self.page.wait_for_timeout(200)  # what was just done reaches the server
        self.page.wait_for_function(
            """() => { const app = document.querySelector('[data-testid="stApp"]');
            return app && app.getAttribute('data-test-script-state') === 'notRunning'
              && !document.querySelector('[data-testid="stSkeleton"], [data-stale="true"]'); }""",
            timeout=WAIT_MS,
        )

    def words(self) -> str:
        """What the page says."""
        return self.page.get_by_test_id("stMain").inner_text()

    def metric(self, label: str) -> str:
        """The figure under a label that begins so."""
        box = self.page.get_by_test_id("stMetric").filter(has_text=label).first
        return box.get_by_test_id("stMetricValue").inner_text().strip()

    def download(self, label: str) -> Path:
        """What the button of this label gives, as a file beside the pictures."""
        with self.page.expect_download() as coming:
            self.page.get_by_test_id("stDownloadButton").get_by_role("button", name=label).click()
        path = self.pictures / coming.value.suggested_filename
        coming.value.save_as(path)
        return path

    def picture(self, name: str) -> None:
        """Keep the whole page as a picture."""
        self.settle()
        main = self.page.get_by_test_id("stMain")
        height = main.evaluate("node => node.scrollHeight")
        self.page.set_viewport_size(SIZE | {"height": max(SIZE["height"], min(int(height) + 20, 6000))})
        self.page.wait_for_timeout(300)  # charts take their new width
        self.page.screenshot(path=self.pictures / f"{name}-{self.theme}.png")
        self.page.set_viewport_size(SIZE)

    def is_whole(self) -> None:
        """Fails on a stack trace, and on what the console complained of."""
        text = self.words()
        assert not [sign for sign in TRACES_OF_ERRORS if sign in text], text
        assert self.page.get_by_test_id("stException").count() == 0, text
        assert self.wrong == []


@contextmanager
def visit(browser: Any, port: int, pictures: Path, theme: str = "light") -> Iterator[Visit]:
    """A visitor with a window of their own. Pictures go to KVMILL_SCREENSHOTS where it is set."""
    pictures = Path(os.environ.get("KVMILL_SCREENSHOTS") or pictures)
    pictures.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(color_scheme=theme, viewport=SIZE, accept_downloads=True, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    try:
        yield Visit(context.new_page(), f"http://127.0.0.1:{port}", pictures, theme)
    finally:
        context.close()
