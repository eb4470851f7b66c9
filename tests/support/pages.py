"""Pages of the dashboard without a browser: opened, read as text, and their jobs waited for."""

from __future__ import annotations

import re
from pathlib import Path

from streamlit.testing.v1 import AppTest
from waiting import ended

from kvmill import dashboard
from kvmill.dashboard.job import Job
from kvmill.dashboard.jobs import Jobs

_SIGN = re.compile(r"\\([^A-Za-z0-9\s])")
APP = Path(dashboard.__file__).parent / "app.py"


def open_page(page: str, **address: str) -> AppTest:
    """A page, with the query parameters of its address. A stack trace on it fails the test."""
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    app.query_params.update(address)
    if page != "overview" or address:
        app.switch_page(f"app_pages/{page}.py")
        for name, value in address.items():
            app.query_params[name] = value
        app.run()
    return whole(app)


def whole(app: AppTest) -> AppTest:
    """The same page; fails on a stack trace."""
    assert not app.exception, app.exception[0].stack_trace
    return app


def words(app: AppTest) -> str:
    """Everything a page says, without the strokes before signs that Markdown would obey."""
    parts = [*app.title, *app.header, *app.subheader, *app.markdown, *app.caption, *app.text]
    parts += [*app.info, *app.success, *app.warning, *app.error, *app.code]
    labels = [button.label for button in app.button]
    return _SIGN.sub(r"\1", "\n".join([*(str(part.value) for part in parts), *labels]))


def click(app: AppTest, label: str) -> AppTest:
    """Press the button of this label."""
    next(button for button in app.button if button.label == label).click().run()
    return whole(app)


def newest_ended(store: Path) -> Job:
    """The newest job of a store, once it has ended."""
    jobs = Jobs(store)
    return ended(jobs, jobs.list()[0].id)
