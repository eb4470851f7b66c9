"""The way of a new user through a real browser: from a file of recorded runs to a number of GPUs and a report."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, visit
from recordings import tau_bench
from serving import dashboard, free_port
from tiny import save_tiny
from waiting import end_all

from kvmill.dashboard.jobs import Jobs

JOB_MS = 180_000
DELAYED = "te(proxy=assistant,delay=1,keep=0.2)"


@pytest.mark.timeout(400)
def test_from_an_upload_to_a_report(chromium: Any, tmp_path: Path):
    store, models = tmp_path / "store", tmp_path / "models"
    recorded, model = tau_bench(tmp_path / "airline.json"), save_tiny(models / "tiny")
    port = free_port()
    with dashboard(store, "--input-root", str(models), port=port), visit(chromium, port, tmp_path / "pictures") as it:
        try:
            it.open()
            uploads_and_reads(it, recorded)
            replays(it, model)
            compares(it)
            report = sizes(it)
            it.is_whole()
            is_self_contained(report)
            it.page.goto(report.as_uri())
            it.page.screenshot(path=it.pictures / "report.png", full_page=True)
        finally:
            end_all(Jobs(store))


def uploads_and_reads(it: Visit, recorded: Path) -> None:
    it.turn_to("Traces")
    it.page.locator("input[type=file]").set_input_files(recorded)
    it.page.get_by_role("button", name="Read them").click()
    it.page.get_by_text("What was read").wait_for(timeout=JOB_MS)
    it.settle()
    assert it.metric("accepted") == "2"
    assert it.metric("rejected") == "1"
    assert "Nothing was found" not in it.words(), "a mail address is personal data"
    it.picture("traces-read")


def replays(it: Visit, model: Path) -> None:
    it.turn_to("Replay")
    other = it.page.get_by_role("textbox", name="Or another model")
    other.fill(str(model))
    other.press("Enter")
    it.settle()
    assert it.metric("Trajectories") == "2"
    it.picture("replay-asked")
    it.page.get_by_role("button", name="Start the replay").click()
    it.page.get_by_role("link", name="Compare the policies").wait_for(timeout=JOB_MS)
    it.picture("replay-done")
    it.page.get_by_role("link", name="Compare the policies").click()


def compares(it: Visit) -> None:
    it.page.get_by_role("heading", name="Figures").wait_for()
    it.settle()
    rows = list(csv.DictReader(it.download("Download as CSV").read_text().splitlines()))
    assert [row["policy"] for row in rows] == ["full", DELAYED, "te(proxy=boundary,keep=0.2)"]
    assert {row["trajectories"] for row in rows} == {"2"}
    it.picture("compared")


def sizes(it: Visit) -> Path:
    """Forty long-running agents, a quarter of their tokens kept; a bound at once, a simulation after it."""
    it.turn_to("Capacity")
    it.page.get_by_text("Load, waits, scale").click()
    agents = it.page.get_by_role("spinbutton", name="Agents")
    agents.fill("40")
    agents.press("Enter")
    it.page.get_by_test_id("stCode").filter(has_text="--agents=40").wait_for()
    it.settle()
    it.page.get_by_role("slider", name="Keep ratio").press("ArrowRight")
    it.page.get_by_role("heading", name="Answer · estimated bound").wait_for()
    it.settle()
    assert int(it.metric("GPUs at least")) >= 1
    it.picture("capacity-bound")
    it.page.get_by_role("heading", name="Answer · simulated").wait_for(timeout=JOB_MS)
    it.settle()
    assert "keep=0.25" in it.words()
    assert int(it.metric("GPUs saved · simulated")) >= 1
    it.picture("capacity-simulated")
    return it.download("Report as HTML")


def is_self_contained(report: Path) -> None:
    """The report asks no other file for anything, and says what the page says."""
    text = report.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|(?:src|href)\s*=", text, re.IGNORECASE)
    assert "te(proxy=assistant,delay=1,keep=0.25)" in text
    assert "kvmill plan" in text
    for word in ("simulated", "measured", "assumed"):
        assert f"<b>{word}</b>" in text
