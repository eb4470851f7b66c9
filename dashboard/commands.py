"""`kvmill dashboard`: starts Streamlit on this machine, with the interpreter that runs kvmill."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..console import guarded, note
from ..errors import UserError

LOCAL = ("127.0.0.1", "localhost", "::1")


def command(host: str, port: int) -> list[str]:
    """The command line of the server. UserError if it cannot work."""
    if host not in LOCAL:
        raise UserError(
            f"--host {host}: the dashboard has no login yet, so it only serves this machine ({', '.join(LOCAL)}); "
            "to reach it from elsewhere, forward the port over ssh"
        )
    if importlib.util.find_spec("streamlit") is None:
        raise UserError("the dashboard needs Streamlit: pip install 'kvmill[dashboard]'")
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"--port {port} on {host} cannot be used ({error.strerror}); choose another") from None
    app = Path(__file__).with_name("app.py")
    flags = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
    }
    return [sys.executable, "-m", "streamlit", "run", str(app), *(f"--{key}={value}" for key, value in flags.items())]


def register(app: typer.Typer) -> None:
    """Add `dashboard` to the command line."""

    @app.command()
    @guarded
    def dashboard(
        host: Annotated[str, typer.Option(help="Address to serve; only this machine for now.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve.")] = 8501,
        store: Annotated[
            Path | None, typer.Option(help="Store to read (KVMILL_STORE, else ./kvmill-store).", file_okay=False)
        ] = None,
    ) -> None:
        """Show runs, comparisons and plans in a browser."""
        from ..traces.store import Store

        arguments = command(host, port)
        where = Store.open(store).path.absolute()
        note(f"kvmill dashboard on http://{host}:{port} reading {where}; stop it with Ctrl-C")
        # Streamlit takes this process's place: signals and the exit code need no passing on.
        os.execve(sys.executable, arguments, os.environ | {"KVMILL_STORE": str(where)})
