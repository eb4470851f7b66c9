"""What `streamlit run` starts: the pages of `app`, and beside them the routes of the API in the same process."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

app = st.App(Path(__file__).with_name("app.py"))
