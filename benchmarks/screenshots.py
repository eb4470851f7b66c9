"""The pictures of docs/guide.md: `kvmill bench screenshots --store STORE` renews them from a store with a demo in it.

Needs the test packages (Playwright) and a Chromium on PATH.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path

from PIL import Image

from kvmill.console import note
from kvmill.errors import UserError

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MOST_BYTES = 120_000
WAIT_S = 180
WIDTH = 1180
# page → how much of it is shown, in pixels
HEIGHTS = {"overview": 820, "traces": 1000, "replay": 1000, "compare": 1150, "inspector": 1150, "capacity": 1250}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STILL = """() => { const app = document.querySelector('[data-testid="stApp"]');
return app && app.getAttribute('data-test-script-state') === 'notRunning' && document.querySelector('h1')
  && !document.querySelector('[data-testid="stSkeleton"], [data-stale="true"]'); }"""
NO_PLACE = "[data-testid='stSidebarUserContent'] { display: none; }"  # the store's path on this machine


def taken(base: str, into: Path, pages: Collection[str] = tuple(HEIGHTS)) -> Iterator[Path]:
    """A picture of every page, as they are made. UserError without a browser, and for a page that is not whole."""
    from playwright.sync_api import TimeoutError as TooLate
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        raise UserError(f"no browser on PATH ({', '.join(BROWSERS)})")
    into.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        for name in pages:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHTS[name]}, color_scheme="light")
            page.goto(f"{base}/{'' if name == 'overview' else name}")
            try:
                page.wait_for_function(STILL, timeout=1000 * WAIT_S)
            except TooLate:
                raise UserError(f"page {name} was not whole after {WAIT_S} s: try again when less runs here") from None
            page.add_style_tag(content=NO_PLACE)
            page.wait_for_timeout(2000)  # charts are drawn after the text
            path = into / f"{name}.png"
            small(page.screenshot(), path)
            page.close()
            yield path
        browser.close()


def small(picture: bytes, path: Path) -> None:
    """Write a PNG of few colours, as few as keep it below the limit."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for colours in (128, 64, 32, 16):
        image.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise UserError(f"{path.name} is larger than {MOST_BYTES} bytes: show less of the page")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench screenshots", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="a store with an ingest, a replay and a plan")
    parser.add_argument("--into", type=Path, default=PICTURES, help="folder of the pictures (docs/pictures)")
    parser.add_argument("--page", action="append", choices=list(HEIGHTS), help="only this page; may be given again")
    asked = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "kvmill", "dashboard", "--port", str(port), "--store", str(asked.store)]
    server = subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(server, f"{base}/healthz")
        for path in taken(base, asked.into, asked.page or tuple(HEIGHTS)):
            note(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
    finally:
        server.terminate()
        server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise UserError("the dashboard did not start: is the store whole (kvmill store check)?")


if __name__ == "__main__":
    main()
