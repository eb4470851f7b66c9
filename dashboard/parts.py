"""Pieces the pages share: the store and who asks, choices that can be linked to, words for what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ..errors import UserError
from ..traces.store import Store
from .access import Access, Refused, Visitor
from .limits import Buckets
from .queries_capacity import told_replay
from .said import plain
from .service import Service

ORIGINS = {
    "recorded": "counted in the files as they came",
    "measured": "from a replay of recorded traces through a real model",
    "simulated": "from the queueing simulation of the fleet",
    "estimated": "computed from a formula on the target's figures, not measured there",
    "assumed": "taken as given; change it with a flag of the command",
}
MOST_PROBLEMS = 10
NOT_MEASURED = "–"
FIGURE_PX, SHORT_PX = 210, 165
"""Widths of a figure with its label, and with a short one: two and two beside the sidebar of a narrow window."""
_SHOWN = "token shown"
_GUESSES = Buckets(rate_per_s=0.2, burst=5)  # tokens tried per address, over all sessions


def visitor() -> Visitor:
    """Who looks at the page: their address, and whether this session has shown the token."""
    return Visitor(f"page {_address()}", bool(st.session_state.get(_SHOWN)))


def _address() -> str:
    return st.context.ip_address or "127.0.0.1"


def open_service() -> Service:
    """What a page may do to the store. Refused until the session has shown the token, where one is needed."""
    store = Store.open()
    access = Access.from_environment(store.desk)
    access.require(visitor())
    return Service(store, access)


def open_store() -> Store:
    """The store the dashboard was started with (KVMILL_STORE, else ./kvmill-store). Refused as `open_service`."""
    return open_service().store


def ask_token() -> None:
    """Where a token is needed, ask for it once per session and show nothing else before. Only a flag is kept."""
    access = Access.from_environment(Store.open().desk)
    try:
        access.require(visitor())
        return
    except Refused as refused:
        reason = str(refused)
    st.title("kvmill")
    with st.form("token", clear_on_submit=True):
        given = st.text_input("Token", type="password", autocomplete="current-password", help=reason)
        sent = st.form_submit_button("Enter")
    if sent:
        wait_s = _GUESSES.take(visitor().name)
        if wait_s:
            st.error(f"Too many tries: wait {wait_s:.0f} s.")
        elif access.matches(given):
            st.session_state[_SHOWN] = True
            st.rerun()
        else:
            st.error("This is not the token that the dashboard was started with.")
    st.stop()


@contextmanager
def damage_shown(store: Store) -> Iterator[None]:
    """Show what is wrong with the store in place of the content, instead of a stack trace."""
    try:
        yield
    except UserError as error:
        st.error(f"The store cannot be read: {plain(error)}", icon=":material/error:")
        problems = store.check()
        if problems:
            more = f"\n\nand {len(problems) - MOST_PROBLEMS} more." if len(problems) > MOST_PROBLEMS else ""
            listed = "\n".join(f"- {plain(problem)}" for problem in problems[:MOST_PROBLEMS])
            st.markdown(f"What `kvmill store check` finds ({len(problems)}):\n\n{listed}{more}")
        st.stop()


@contextmanager
def refusal_shown() -> Iterator[None]:
    """Show why something that was asked for was not done; the page goes on."""
    try:
        yield
    except UserError as error:
        st.error(plain(error), icon=":material/error:")


def linked(
    name: str,
    options: Sequence[str],
    default: str | None = None,
    *,
    label: str | None = None,
    shown: Callable[[str], str] = str,
    help: str | None = None,
    page: str = "",
) -> str:
    """A choice that stands in the page's address as `?NAME=CHOICE`, so that the page can be linked to as it is.

    It is kept over page changes, for the `page` alone if one is given: pages that offer other things under one name
    must give theirs. `default` is the first option if not given. An address that names what there is not is said to be
    stale. Where there are no options, that is said and the page ends.
    """
    key, asked = f"{page} choice of {name}".strip(), st.query_params.get(name)
    if not options:
        st.info(f"There is no {(label or name).lower()} to choose yet.", icon=":material/info:")
        st.stop()
    if asked in options:
        st.session_state[key] = asked
    elif st.session_state.get(key) not in options:
        st.session_state[key] = default if default in options else options[0]
    if asked is not None and asked not in options:
        instead = plain(st.session_state[key])
        st.warning(f"The link asks for {name} {plain(asked)}, which is not here. Shown instead: {instead}.")
    chosen = st.selectbox(
        label or name.capitalize(),
        options,
        key=key,
        format_func=shown,
        help=help,
        persist_state="session",
        on_change=lambda: st.query_params.update({name: st.session_state[key]}),
    )
    found = chosen or options[0]
    if st.query_params.get(name) != found:
        st.query_params[name] = found
    return found


def linked_replay(
    name: str, store: Store, runs: Sequence[str], default: str | None = None, *, label: str, page: str
) -> str:
    """A choice of a replay, each with the model, the mode, the size and the time it was made."""
    known = {info.run_id: told_replay(info) for info in store.runs("replay")}
    return linked(name, runs, default, label=label, shown=lambda run: known.get(run, run), page=page)


def legend(*words: str) -> None:
    """Say what the labels of this page's figures mean."""
    st.caption(" · ".join(f"**{word}**: {ORIGINS[word]}" for word in words))


def rows_shown(rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Rows as a table as wide as the page; an en dash where nothing was measured. `more` is `st.dataframe`'s."""
    st.dataframe(rows, hide_index=True, width="stretch", placeholder=NOT_MEASURED, **more)


def figures() -> DeltaGenerator:
    """Room for figures of `FIGURE_PX` each, side by side: as many to a row as fit, so that none is cut short."""
    return st.container(horizontal=True)


def number(value: float | int | None, form: str = ",.0f") -> str:
    """A figure for people; an en dash where nothing was measured."""
    return NOT_MEASURED if value is None else format(value, form)
