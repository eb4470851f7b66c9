"""Every page on an empty, a filled and a damaged store: it runs, leads with the answer, and says what is wrong."""

from __future__ import annotations

from pathlib import Path

import fabricate
import pytest
from streamlit.testing.v1 import AppTest

from kvmill import dashboard
from kvmill.traces.store import Store

APP = Path(dashboard.__file__).parent / "app.py"
PAGES = ["overview", "compare", "capacity"]


@pytest.fixture(autouse=True)
def _from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages must find their files wherever the command was started."""
    monkeypatch.chdir(tmp_path)


def open_page(page: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    if page != "overview":
        app.switch_page(f"app_pages/{page}.py").run()
    assert not app.exception, app.exception[0].stack_trace
    return app


def words(app: AppTest) -> str:
    parts = [*app.title, *app.subheader, *app.markdown, *app.caption, *app.info, *app.success, *app.warning, *app.error]
    return "\n".join(str(part.value) for part in parts) + "\n".join(str(code.value) for code in app.code)


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store_says_what_to_run(page: str, own_store: Path):
    app = open_page(page)
    assert len(app.error) == 0
    assert "kvmill " in words(app)
    assert not own_store.exists(), "looking creates nothing"


def test_overview_leads_with_the_newest_answer_and_lists_runs(own_store: Path):
    store = Store.open(own_store)
    replay = fabricate.replay(store)
    fabricate.plan(store)
    app = open_page("overview")
    assert app.success[0].value.startswith(f"With `{fabricate.DELAYED}` long-agents needs 14 × H200 instead of 27")
    assert "not with the planned qwen3.5-27b: answer accuracy 75% → 50%" in app.success[0].value
    assert [metric.value for metric in app.metric] == ["27 × H200", "14 × H200", "12 × H200"]
    assert all("simulated" in metric.label for metric in app.metric)
    assert app.metric[1].delta == "13 saved (12 to 14)"
    listed = app.dataframe[0].value
    assert replay in set(listed["run"])
    assert "kvmill inspect" in words(app)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("damage", ["torn manifest", "missing file", "torn file"])
def test_a_damaged_store_is_said_in_words(page: str, damage: str, own_store: Path):
    store = fabricate.filled(own_store)
    for run in store.runs():
        folder = store.folder(run.run_id)
        file = folder / run.files[0].path
        if damage == "torn manifest":
            (folder / "manifest.json").write_text("{")
        elif damage == "missing file":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:20])
    app = open_page(page)
    assert app.error[0].value.startswith("The store cannot be read: ")
    assert "kvmill store check" in words(app)
