"""What the page Capacity simulates in the background: the answer itself, the same at other loads, fleets over time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from . import queries_jobs
from .capacity_setting import ENOUGH, FIRST_LOOK, LOADS, Ask
from .job import Job
from .jobs import NotNow, UnknownJob
from .parts import refusal_shown, visitor
from .parts_capacity import MOVED
from .parts_jobs import watch
from .service import Service
from .verbs import words

_BEGUN = "capacity begun"


@dataclass(slots=True)
class Begun:
    """What a session began: the job of the last move, and those that were ended because one moved on."""

    last: str | None = None
    left: set[str] = field(default_factory=set)


def jobs_of(service: Service, ask: Ask) -> tuple[Job | None, Job | None]:
    """The newest plan jobs that answer this question: a first look, and one with enough replications."""
    first, enough = (_newest(service, "plan", ask.plan(count)) for count in (FIRST_LOOK, ENOUGH))
    return first, enough


def refine(service: Service, ask: Ask, jobs: tuple[Job | None, Job | None], replications: int | None) -> None:
    """Simulate in the background what is only bounded; a click confirms a first look. `replications` that there are.

    A simulation begins by itself once policy or keep ratio were moved, and ends the one that the last move began;
    whoever comes back to a question that was left in this way has it begun anew.
    """
    automatic = st.toggle(
        "Simulate in the background what I choose",
        True,
        key="capacity automatic",
        persist_state="session",
        help=f"{FIRST_LOOK} replications, a first look. What is simulated takes the place of the bounds.",
    )
    live = [job for job in jobs if job and not job.ended]
    first, mine = jobs[0], st.session_state.setdefault(_BEGUN, Begun())
    begun = first is not None and first.id not in mine.left
    if first in live and not begun:
        live.remove(first)  # it is being ended
    broken = first is not None and begun and first.state in ("failed", "lost") and not replications
    for job in [*live, *([first] if broken and first else [])]:
        watch(job.id)
    if live:
        return
    if replications is None:
        if st.session_state.get(MOVED) and automatic and not begun:
            _begin(service, ask, FIRST_LOOK, mine)
        if st.button("Simulate again" if begun else "Simulate it", type="primary", icon=":material/play_arrow:"):
            _begin(service, ask, FIRST_LOOK, mine)
    elif replications < ENOUGH:
        st.warning(f"A first look: {replications} replications.")
        if st.button(f"Confirm with {ENOUGH} replications", icon=":material/done_all:"):
            _begin(service, ask, ENOUGH, mine)


def over_load(service: Service, ask: Ask) -> list[dict[str, Any]]:
    """GPUs by policy and load as they were simulated, with the button that asks for it and the job while it runs.

    `load` is in times the load of the question. Empty while there is no answer.
    """
    job = _newest(service, "plan", ask.loads())
    with refusal_shown():
        answer = service.jobs.result(job.id) if job and job.state == "done" else None
        if answer:
            own = float(ask.setting.get("scale_load") or 1.0)
            return [row | {"load": round(float(row["scale_load"]) / own, 6)} for row in answer["sweep"]]
        if job and (not job.ended or job.state in ("failed", "lost")):
            watch(job.id)
        if job is None or job.ended:
            ends = f"{LOADS[0]:g} to {LOADS[-1]:g} times the load"
            text = f"Plans at {ends}, {FIRST_LOOK} replications each: takes as long as several first looks."
            if st.button(f"Simulate {ends}", icon=":material/stacked_line_chart:", help=text):
                service.submit("plan", ask.loads(), visitor())
                st.rerun()
    return []


def over_time(service: Service, ask: Ask, wanted: Mapping[str, int], known: set[str]) -> None:
    """The button that simulates the fleets of the answer once more, watched over time; and those that run."""
    missing = {text: ask.series(text, gpus) for text, gpus in wanted.items() if text not in known}
    jobs = [_newest(service, "simulate", options) for options in missing.values()]
    live = [job for job in jobs if job and not job.ended]
    for job in live:
        watch(job.id)
    if missing and not live and st.button("Simulate these fleets over time", icon=":material/show_chart:"):
        with refusal_shown():
            for options in missing.values():
                service.submit("simulate", options, visitor())
            st.rerun()


def _newest(service: Service, verb: str, options: Mapping[str, Any]) -> Job | None:
    found, _ = service.jobs.found(queries_jobs.NEWEST)
    return queries_jobs.newest_with(found, verb, words(verb, options))


def _begin(service: Service, ask: Ask, replications: int, mine: Begun) -> None:
    """Submit the plan and end the one before it.

    Streamlit leaves a script for a newer one wherever that touches the page or the session's state: nothing between
    the two does, so that no job is begun that the next move does not know of.
    """
    with refusal_shown():
        who = visitor()
        job = service.submit("plan", ask.plan(replications), who)
        before, mine.last = mine.last, job.id
        if before:
            with suppress(NotNow, UnknownJob):  # it ended by itself, or was removed
                service.cancel(before, who)
                mine.left.add(before)
        st.rerun()
