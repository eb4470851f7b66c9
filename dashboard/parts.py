"""Pieces the pages share: the store, and what to show when it is damaged. The only shared file that uses Streamlit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from ..errors import UserError
from ..traces.store import Store

ORIGINS = {
    "measured": "from a replay of recorded traces through a real model",
    "simulated": "from the queueing simulation of the fleet",
    "estimated": "computed from a formula on the target's figures, not measured there",
    "assumed": "taken as given; change it with a flag of the command",
}


def open_store() -> Store:
    """The store the dashboard was started with (KVMILL_STORE, else ./kvmill-store)."""
    return Store.open()


@contextmanager
def damage_shown(store: Store) -> Iterator[None]:
    """Show what is wrong with the store in place of the content, instead of a stack trace."""
    try:
        yield
    except UserError as error:
        st.error(f"The store cannot be read: {error}", icon=":material/error:")
        problems = store.check()
        if problems:
            st.write("What `kvmill store check` finds:")
            st.code("\n".join(problems), language=None, wrap_lines=True)
        st.stop()


def legend(*words: str) -> None:
    """Say what the labels of this page's figures mean."""
    st.caption(" · ".join(f"**{word}**: {ORIGINS[word]}" for word in words))


def number(value: float | int | None, form: str = ",.0f") -> str:
    """A figure for people; an en dash where nothing was measured."""
    return "–" if value is None else format(value, form)
