"""What pages share: choices that are linked to and kept, and the token that is asked for once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvmill import dashboard
from kvmill.dashboard import access, parts
from kvmill.dashboard.limits import Buckets

APP = Path(dashboard.__file__).parent / "app.py"
TOKEN = "a-token-of-these-tests"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (access.TOKEN, access.TOKEN_FILE, access.ROOTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(parts, "_GUESSES", Buckets(0.01, 5))
    monkeypatch.setattr(parts, "_address", lambda: "192.0.2.1")


def answer(app: AppTest, token: str) -> None:
    app.text_input[0].input(token)
    app.button[0].click().run()


def choosing() -> None:
    import streamlit as st

    from kvmill.dashboard.parts import linked

    if not st.session_state.get("elsewhere"):
        st.write(linked("run", ["a", "b", "c"], "b"))


def test_a_choice_stands_in_the_address_and_the_address_chooses():
    app = AppTest.from_function(choosing).run()
    assert (app.selectbox[0].value, app.query_params["run"]) == ("b", "b")
    app.selectbox[0].select("c").run()
    assert (app.markdown[0].value, app.query_params["run"]) == ("c", "c")
    app = AppTest.from_function(choosing)
    app.query_params["run"] = "a"
    assert app.run().markdown[0].value == "a"


def measuring() -> None:
    from kvmill.dashboard.parts import rows_shown

    rows_shown([{"policy": "full", "tokens": 3}, {"policy": "te", "tokens": None}])


def test_what_was_not_measured_is_a_dash_in_every_table_of_every_page():
    (table,) = AppTest.from_function(measuring).run().dataframe
    assert table.proto.placeholder == "–"
    pages = [path for path in APP.parent.rglob("*.py") if path.name != "parts.py"]
    assert [path.name for path in pages if "st.dataframe(" in path.read_text()] == [], "they call `rows_shown`"


def test_a_stale_link_is_said_and_not_obeyed():
    app = AppTest.from_function(choosing)
    app.query_params["run"] = "gone"
    app.run()
    assert app.markdown[0].value == "b"
    assert "gone, which is not here" in app.warning[0].value


def test_a_link_cannot_put_markup_on_the_page():
    app = AppTest.from_function(choosing)
    app.query_params["run"] = "![x](https://elsewhere.example/x.png)"
    app.run()
    assert r"\!\[x\]\(https" in app.warning[0].value


def test_a_choice_is_kept_while_its_page_is_not_shown():
    app = AppTest.from_function(choosing).run()
    app.selectbox[0].select("c").run()
    app.session_state["elsewhere"] = True
    del app.query_params["run"]  # as a change of pages does
    app.run()
    app.session_state["elsewhere"] = False
    app.run()
    assert app.markdown[0].value == "c"


def two_pages() -> None:
    import streamlit as st

    from kvmill.dashboard.parts import linked

    page = st.session_state.get("page", "one")
    st.write(linked("run", ["a", "b", "c"], page=page))


def test_a_choice_on_one_page_does_not_change_the_choice_on_another():
    app = AppTest.from_function(two_pages).run()
    app.selectbox[0].select("c").run()
    for page, expected in (("another", "a"), ("one", "c")):
        app.session_state["page"] = page
        del app.query_params["run"]  # as a change of pages does
        app.run()
        assert app.markdown[0].value == expected


def nothing_to_choose() -> None:
    import streamlit as st

    from kvmill.dashboard.parts import linked

    linked("trajectory", [], label="Trajectory")
    st.write("went on")


def test_nothing_to_choose_from_is_said_and_the_page_ends():
    app = AppTest.from_function(nothing_to_choose).run()
    assert not app.exception
    assert app.info[0].value == "There is no trajectory to choose yet."
    assert not app.markdown


def test_pages_ask_for_the_token_once_and_keep_only_a_flag(own_store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.TOKEN, TOKEN)
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    assert [title.value for title in app.title] == ["kvmill"], "nothing but the question"
    assert not app.sidebar.caption, "not even where the store is"
    answer(app, "wrong")
    assert "not the token" in app.error[0].value
    answer(app, TOKEN)
    assert not app.exception
    assert app.title[0].value != "kvmill"
    app.switch_page("app_pages/compare.py").run()
    assert app.title[0].value == "Compare policies"
    assert TOKEN not in repr(app.session_state)
    assert not own_store.exists()


def test_guessing_is_slowed_down_over_all_sessions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.TOKEN, TOKEN)
    for guess in range(6):
        app = AppTest.from_file(str(APP), default_timeout=30).run()
        answer(app, f"guess-{guess}")
    assert "Too many tries" in app.error[0].value


def test_a_page_that_is_run_without_the_question_reads_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(access.TOKEN, TOKEN)
    app = AppTest.from_file(str(APP.parent / "app_pages" / "compare.py"), default_timeout=30).run()
    assert "a token is needed" in app.exception[0].message
