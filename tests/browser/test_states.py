"""Every page in a real browser on an empty, a filled and a damaged store: words, never a stack trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fabricate
from browsing import PAGES, visit
from serving import dashboard, free_port

from kvmill.traces.store import Store


def test_no_page_breaks_on_an_empty_a_filled_and_a_damaged_store(chromium: Any, tmp_path: Path):
    where = tmp_path / "store"
    port = free_port()
    with dashboard(where, port=port), visit(chromium, port, tmp_path / "pictures", "dark") as it:
        for state in ("empty", "filled", "damaged"):
            if state == "filled":
                fabricate.filled(where)
            elif state == "damaged":
                store = Store.open(where)
                for run in store.runs():
                    (store.folder(run.run_id) / "manifest.json").write_text("{")
            for page in PAGES:
                it.open(page)
                it.picture(f"{state}-{page}")
                it.is_whole()
                if state == "empty" and page not in ("replay", "capacity"):  # these two work without a store
                    assert "kvmill " in it.words()
                if state == "damaged" and page != "jobs":  # jobs have folders of their own
                    assert "The store cannot be read" in it.words()
