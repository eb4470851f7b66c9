"""Entry of the dashboard: title, the token, pages, and which store is read. Run by `kvmill dashboard`."""

from pathlib import Path

import streamlit as st
from PIL import Image

from kvmill.dashboard.parts import ask_token, open_store

HERE = Path(__file__).parent / "app_pages"

# A picture made here: an icon given by name would be fetched from another host.
st.set_page_config(page_title="kvmill", page_icon=Image.new("RGB", (32, 32), "#0072B2"), layout="wide")
page = st.navigation(
    [
        st.Page(HERE / "overview.py", title="Overview", icon=":material/home:", default=True),
        st.Page(HERE / "traces.py", title="Traces", icon=":material/database:"),
        st.Page(HERE / "replay.py", title="Replay", icon=":material/play_circle:"),
        st.Page(HERE / "compare.py", title="Compare policies", icon=":material/compare_arrows:"),
        st.Page(HERE / "inspector.py", title="Inspector", icon=":material/search:"),
        st.Page(HERE / "capacity.py", title="Capacity", icon=":material/dns:"),
        st.Page(HERE / "regressions.py", title="Regressions", icon=":material/history:"),
        st.Page(HERE / "jobs.py", title="Jobs", icon=":material/checklist:"),
    ]
)
ask_token()
with st.sidebar:
    st.caption(f"Store: `{open_store().path}`")
page.run()
