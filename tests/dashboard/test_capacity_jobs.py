"""What the page Capacity begins: a visitor who moves on at any moment leaves no simulation that nobody ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmill.dashboard import capacity_jobs
from kvmill.dashboard.access import Access, Visitor
from kvmill.dashboard.capacity_jobs import Begun
from kvmill.dashboard.capacity_setting import Ask, Setting
from kvmill.dashboard.jobs import Jobs
from kvmill.dashboard.service import Service
from kvmill.traces.store import Store


class LeftForANewerScript(Exception):
    """What Streamlit raises wherever a script touches it, once the visitor has moved on."""


class Impatient:
    """Streamlit for a visitor who moves on as soon as a job was submitted."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs, self.allowed = jobs, 0

    def touched(self, *_: object) -> Visitor:
        if self.jobs.folder.exists() and len(self.jobs.list()) > self.allowed:
            raise LeftForANewerScript
        return Visitor("page", True)

    rerun = touched

    @property
    def session_state(self) -> dict[str, object]:
        self.touched()
        return {}


def test_a_job_that_was_just_begun_is_known_to_the_next_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jobs = Jobs(tmp_path, python="true")
    service = Service(Store.open(tmp_path), Access(tmp_path), jobs)
    streamlit, mine = Impatient(jobs), Begun()
    monkeypatch.setattr(capacity_jobs, "st", streamlit)
    monkeypatch.setattr(capacity_jobs, "visitor", streamlit.touched)
    for n, keep in enumerate((0.3, 0.4)):
        streamlit.allowed = n
        with pytest.raises(LeftForANewerScript):
            capacity_jobs._begin(service, Ask(Setting(), f"te(keep={keep})", "te", keep), 3, mine)
    new, old = jobs.list()
    assert (old.folder / "cancel.json").exists()
    assert not (new.folder / "cancel.json").exists()
    assert (mine.last, mine.left) == (new.id, {old.id})
