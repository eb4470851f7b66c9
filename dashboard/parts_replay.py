"""The sections of the page Replay: what to run, what it will take, what was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
import streamlit as st

from ..console import duration, size
from ..errors import UserError
from ..replay.doctor import models
from ..replay.policies.base import Policy
from ..replay.wanted import MEASURES, MODES
from ..traces.store import Store
from . import choices, queries_replay
from .estimate import Estimate, estimate
from .parts import SHORT_PX, figures, linked, refusal_shown, visitor
from .said import plain
from .service import Service

JOB = "replay job"
_MODES = {
    "teacher": "teacher: recorded tokens are fed, and what is lost is measured",
    "stepwise": "stepwise: every policy also generates the next action at each turn",
    "closed": "closed: the model acts by itself, recorded results answer its calls",
}


def settings(found: Mapping[str, str]) -> dict[str, Any]:
    """What to replay and how, as options of `kvmill replay`; `found` are the traces that there are, by name.

    UserError where a policy is misspelled.
    """
    left, right = st.columns(2)
    with left:
        traces = linked("traces", list(found), label="Traces", shown=lambda spec: found.get(spec, spec))
        limit = st.number_input(
            "At most so many trajectories, families in turn (0: all)",
            min_value=0,
            value=4,
            key="replay limit",
            persist_state="session",
        )
        names = {model["name"]: model for model in models()}
        named = st.selectbox("Model", list(names), key="replay model", persist_state="session")
        other = st.text_input(
            "Or another model",
            key="replay other model",
            placeholder="owner/name",
            help="A hub id, or a folder or GGUF file inside the store or an input root.",
            persist_state="session",
        )
        model = (other or "").strip() or named
        if model in names and not (names[model]["present"] or names[model]["converted"]):
            st.caption(f"{model} is not here yet: the job fetches it first.")
    with right:
        methods = st.multiselect(
            "Policies, besides the full cache",
            choices.METHODS,
            default=choices.CHOSEN_METHODS,
            format_func=choices.NAMES.__getitem__,
            help="  \n".join(f"`{name}`: {plain(choices.summary(name))}" for name in choices.METHODS),
            wrap=True,
            key="replay methods",
            persist_state="session",
        )
        ratios = st.multiselect(
            "Keep ratios: the share of the compactable tokens that stays",
            choices.RATIOS,
            default=choices.CHOSEN_RATIOS,
            key="replay ratios",
            accept_new_options=True,
            persist_state="session",
        )
        more = st.text_area(
            "Other policies, one a line",
            key="replay more",
            placeholder="hybrid(window=512,pool=256)",
            persist_state="session",
        )
    with left:
        mode = st.radio("Mode", MODES, format_func=_MODES.__getitem__, key="replay mode", persist_state="session")
    with right:
        measure = st.radio(
            "Measure",
            ("quality",) if mode == "closed" else MEASURES,
            key=f"replay measure {mode == 'closed'}",
            horizontal=True,
            help="Latency runs alone, one policy at a time; `both` times one trajectory per family.",
            persist_state="session",
        )
        explain = st.toggle(
            "Store attention too",
            help="For the Inspector: how much attention the full cache gave to what was dropped.",
            key="replay explain",
            persist_state="session",
            disabled=mode == "closed",
        )
    policies = choices.policies_of(methods, ratios, more or "")
    return {
        "traces": traces,
        "limit": int(limit) or None,
        "model": model,
        "policy": [str(policy) for policy in policies],
        "mode": mode,
        "measure": measure,
        "explain": True if explain and mode != "closed" and measure != "latency" else None,
    }


def expected(store: Store, options: dict[str, Any]) -> Estimate:
    """Show what the replay will take."""
    chosen = queries_replay.lengths(store, options["traces"], options["limit"])
    policies: list[Policy] = choices.policies_of((), (), "\n".join(options["policy"]))
    found = estimate(
        chosen,
        policies,
        queries_replay.longest_segments(store, chosen),
        options["model"],
        options["mode"],
        options["measure"],
        queries_replay.past(store, options["model"]),
    )
    with figures():
        st.metric("Trajectories", f"{found.trajectories:,}", help=f"{found.policies} policies on each", width=SHORT_PX)
        st.metric("Tokens · estimated", f"{found.tokens:,}", width=SHORT_PX)
        took = "unknown" if found.seconds is None else duration(found.seconds)
        st.metric("Time · estimated", took, width=SHORT_PX)
        st.metric("Memory · estimated", "unknown" if found.bytes is None else size(found.bytes), width=SHORT_PX)
    st.caption("Rough, for a machine that does nothing else: " + "; ".join(found.rests_on))
    load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
    if load > cores:
        st.caption(f"This machine is busy (load {load:.0f} on {cores} cores, measured now): it will take longer.")
    free = psutil.virtual_memory().available
    if found.bytes is not None and found.bytes > free:
        st.warning(
            f"This machine has {size(free)} of memory free (measured now): fewer policies at once need less. "
            "A replay on a GPU needs its memory there instead."
        )
    return found


def start(service: Service, options: dict[str, Any]) -> None:
    """The button that starts it."""
    if st.button("Start the replay", type="primary", icon=":material/play_arrow:"):
        with refusal_shown():
            st.session_state[JOB] = service.submit("replay", options, visitor()).id
            st.rerun()


def interrupted(service: Service) -> None:
    """Replays that stopped before their end, to go on with."""
    try:
        found = [row["run"] for row in queries_replay.interrupted(service.store)]
    except UserError as error:
        st.error(plain(error))
        return
    if not found:
        return
    st.subheader("Interrupted")
    run = st.selectbox("A replay that stopped before its end", found, key="replay interrupted")
    if st.button("Go on with it", icon=":material/resume:"):
        with refusal_shown():
            st.session_state[JOB] = service.submit("replay", {"resume": run}, visitor()).id
            st.rerun()
