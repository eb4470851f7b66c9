"""What `streamlit run` starts: the pages of `app`, and beside them the routes of the API in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st

from kvmill.dashboard import uploads
from kvmill.dashboard.access import Access, is_loopback
from kvmill.dashboard.service import Service
from kvmill.dashboard.table import served
from kvmill.errors import UserError
from kvmill.traces.store import Store

store = Store.open()
service = Service(store, Access.from_environment(store.desk))


@asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[None]:
    """Refuse to serve others without a token, however the server was started; clear what a killed one left."""
    address = st.get_option("server.address")
    if not service.access.needed and not is_loopback(str(address)):
        raise UserError(f"server.address {address}: start it with `kvmill dashboard`, and with a token")
    uploads.sweep(service.uploads)
    yield


app = st.App(Path(__file__).with_name("app.py"), routes=served(service), lifespan=lifespan)
