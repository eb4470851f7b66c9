"""What the page Capacity asks: where to begin, workload, model, machine, promises, policy, whose quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from ..errors import UserError
from ..replay.policies.options import split_spec
from ..replay.policies.registry import HEADLINE_POLICY, parse_policy
from ..traces.manifest import RunInfo
from ..traces.store import Store
from . import queries_capacity
from .capacity_answer import Figure
from .capacity_setting import LOAD, MACHINE, Ask, Setting, command, places, promises, shared
from .choices import METHODS, policies_of
from .looks import short_names
from .parts import FIGURE_PX, figures, linked, refusal_shown, visitor
from .said import plain
from .service import Service
from .verbs import Option

NEW, NEWEST = "new", "newest"
MOVED = "capacity moved"
"""Key of the session: whether policy or keep ratio were changed since the settings were."""
BASE, SEEN, CHOSEN = "capacity base", "capacity seen", "capacity chosen"
_KEEPS = (0.05, 1.0)
_CHOICES = {
    "tp": ("auto", "1", "2", "4", "8"),
    "dtype": ("bf16", "fp8"),
    "kv_dtype": ("bf16", "fp8"),
    "preemption": ("recompute", "swap"),
    "compaction": ("inline", "beside"),
    "router": ("affinity", "prefix-aware", "least-loaded", "round-robin"),
}


def start_from(known: Sequence[RunInfo]) -> RunInfo | None:
    """The stored plan to begin from, the newest unless the address names another; None: from the defaults."""
    found = {info.run_id: info for info in known}
    chosen = linked(
        "run",
        [*found, NEW],
        label="Begin from",
        shown=lambda run: queries_capacity.told(found[run]) if run in found else "new settings",
        help="A stored plan with its answer and its settings, to be changed below.",
    )
    if st.session_state.get(BASE) not in (None, chosen):  # else an address that was linked to counts
        for name in ("workload", "model", "gpu", "policy", "keep"):
            st.session_state.pop(f"choice of {name}", None)
            st.query_params.pop(name, None)
        st.session_state.pop(CHOSEN, None)
    st.session_state[BASE] = chosen
    return found.get(chosen)


def settings(service: Service, base: RunInfo | None, first: Setting) -> Setting:
    """Workload, model, machine, promises. `first` are the values to begin with. UserError where they cannot be."""
    run = base.run_id if base else NEW
    limits = dict(text.split("=") for text in first.slo)
    ttft, tpot = limits.pop("ttft_p95", None), limits.pop("tpot_p95", None)
    flags: dict[str, Any] = {}
    options = {option.name: option for option in shared()}
    loads, models, gpus = (look(service) for look in _OFFERED)
    left, middle, right = st.columns(3)
    with left:
        workload = linked("workload", _with(loads, first.workload), first.workload, shown=_told(loads))
        with st.expander("Load, waits, scale"):
            flags |= {name: _flag(options[name], first, run) for name in LOAD}
    with middle:
        model = linked("model", _with(models, first.model), first.model, label="Model geometry", shown=_told(models))
        gpu = linked("gpu", _with(gpus, first.gpu), first.gpu, label="GPU", shown=_told(gpus))
        with st.expander("Deployment and price"):
            flags |= {name: _flag(options[name], first, run) for name in ("price", *MACHINE)}
    with right:
        ttft_s = _limit("p95 time to first token (s)", ttft, f"{run} ttft", 1.0)
        tpot_ms = _limit("p95 time per output token (ms)", tpot, f"{run} tpot", 1000.0)
        more = st.text_input(
            "More promises",
            " ".join(f"{key}={limit}" for key, limit in limits.items()),
            key=f"capacity {run} slo",
            placeholder="e2e_p95=60 ttft_p50=0.5",
            persist_state="session",
        )
        with st.expander("Own files"):
            _upload(service)
    setting = Setting.of(workload, model, gpu, promises(ttft_s, tpot_ms, more or ""), flags)
    service.access.require_inside(places(setting), service.store.desk)
    return setting


def policy(known: Sequence[str]) -> tuple[str, str, float | None]:
    """Policy, method and keep ratio. `known` are policies that a plan already has, the headline first."""
    asked = st.query_params.get("policy")
    if asked and "keep=" in asked:
        try:
            method, keep = parted(asked)
        except UserError:
            method, keep = asked, None
        st.query_params["policy"] = method
        if keep is not None:
            st.query_params["keep"] = f"{keep:g}"
    headline = HEADLINE_POLICY if HEADLINE_POLICY in known or not known else known[-1]
    first, ratio = parted(headline)
    methods = list(dict.fromkeys([*(parted(text)[0] for text in known if text != "full"), *METHODS]))
    left, right = st.columns([2, 3])
    with left:
        names = short_names(methods, keeps=False)
        method = linked("policy", methods, first, label="Policy", shown=names.__getitem__)
    keeps = policies_of([method], ["0.5"])[-1].ratio is not None
    if "capacity keep" not in st.session_state:
        st.session_state["capacity keep"] = _asked_keep() or float(ratio or 0.2)
    keep = right.slider(
        "Keep ratio: the share of the compactable tokens that stays",
        *_KEEPS,
        step=0.05,
        key="capacity keep",
        disabled=not keeps,
        persist_state="session",
    )
    if keeps:
        st.query_params["keep"] = f"{keep:g}"
    chosen = policies_of([method], [f"{keep:g}"])[-1]
    return str(chosen), method, keep if keeps else None


def quality_of(store: Store) -> str | None:
    """The replay that quality is taken from; None: what each plan has, and the newest for new simulations."""
    found = {info.run_id: queries_capacity.told_replay(info) for info in queries_capacity.replays(store)}
    if not found:
        return None
    chosen = linked(
        "quality",
        [NEWEST, *found],
        label="Quality measured by",
        shown=lambda run: found.get(run, "the replay that each plan was made with; the newest for new simulations"),
        help="A complete replay. GPUs depend on it only by the extra turns that a closed-loop replay measured.",
    )
    return None if chosen == NEWEST else chosen


def asked(setting: Setting, policy: str, method: str, keep: float | None, replay: str | None) -> Ask:
    """The question, and a note in the session of whether it was moved to: MOVED.

    Nothing is drawn between the two, so that a visitor who moves on before the page is whole is not forgotten.
    """
    before, now = st.session_state.get(CHOSEN), (setting, policy)
    if before is not None and before != now:
        st.session_state[MOVED] = before[0] == setting
    elif before is None:
        st.session_state[MOVED] = False
    st.session_state[CHOSEN] = now
    return Ask(setting, policy, method, keep, replay)


def looked_at(ask: Ask) -> list[str]:
    """The policies of this method that this session has looked at for this question, the present one last."""
    seen: dict[Any, list[str]] = st.session_state.setdefault(SEEN, {})
    before = [text for text in seen.get((ask.setting, ask.method), []) if text != ask.policy]
    seen[ask.setting, ask.method] = [*before, ask.policy]
    return seen[ask.setting, ask.method]


def parted(text: str) -> tuple[str, float | None]:
    """A policy as its method and its keep ratio, None where it has none. UserError if it is no policy."""
    name, pairs = split_spec(str(parse_policy(text)))
    keep = pairs.pop("keep", None)
    method = f"{name}({','.join(f'{key}={value}' for key, value in pairs.items())})" if pairs else name
    return method, None if keep is None else float(keep)


def shown(told: Sequence[Figure]) -> None:
    """Figures with what hangs on them beneath, as many to a row as their labels leave room for."""
    with figures():
        for figure in told:
            with st.container(width=FIGURE_PX):
                st.metric(figure.label, figure.value)
                if figure.note:
                    st.caption(plain(figure.note))


def copied(ask: Ask, replications: int, measured_by: str | None) -> str:
    """The command line of the answer, shown to be copied: with the replay of its quality, not whichever is newest."""
    text = command("plan", ask.plan(replications) | {"from": ask.replay or measured_by})
    st.code(text, language="bash", wrap_lines=True)
    return text


def _asked_keep() -> float | None:
    try:
        keep = float(st.query_params.get("keep", ""))
    except ValueError:
        return None
    return keep if _KEEPS[0] <= keep <= _KEEPS[1] else None


_OFFERED: tuple[Callable[[Service], dict[str, str]], ...] = (
    queries_capacity.workloads,
    queries_capacity.models,
    queries_capacity.gpus,
)


def _with(offered: Mapping[str, str], first: str) -> list[str]:
    return list(dict.fromkeys([*offered, first]))


def _told(offered: Mapping[str, str]) -> Callable[[str], str]:
    return lambda name: offered.get(name, name)


def _limit(label: str, text: str | None, key: str, factor: float) -> float | None:
    value = None if text is None else float(text) * factor
    return st.number_input(
        label, min_value=0.0, value=value, key=f"capacity {key}", placeholder="no promise", persist_state="session"
    )


def _flag(option: Option, first: Setting, run: str) -> Any:
    """One option of the command as a widget: its help is the command's own."""
    value = first.get(option.name)
    value = option.default if value is None else value
    label, key = option.name.replace("_", " ").capitalize(), f"capacity {run} {option.name}"
    same: dict[str, Any] = {"key": key, "help": option.doc, "persist_state": "session"}
    if option.name in _CHOICES:
        names = list(dict.fromkeys([*_CHOICES[option.name], str(value)]))
        return st.selectbox(label, names, index=names.index(str(value)), **same)
    if option.kind in (int, float):
        number = None if value is None else option.kind(value)
        least = None if option.least is None else option.kind(option.least)
        step = 1 if option.kind is int else None
        typed = st.number_input(label, min_value=least, value=number, step=step, placeholder="as it is", **same)
        return None if typed is None else option.kind(typed)
    return (st.text_input(label, value or "", **same) or "").strip() or option.default


def _upload(service: Service) -> None:
    st.caption("A model's config.json; a workload, GPU or calibration as TOML. It is then among the choices.")
    file = st.file_uploader("Upload", type=["json", "toml"], key="capacity upload", label_visibility="collapsed")
    if file is not None and st.button("Keep it", icon=":material/upload:"):
        with refusal_shown():
            kept = service.upload(file.name, iter([file.getvalue()]), visitor())
            st.toast(f"Kept as {kept.path}")
            st.rerun()
