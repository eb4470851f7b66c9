"""`kvmill dashboard`: starts the pages and the API with the interpreter that runs kvmill. `kvmill jobs` beside it."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..console import guarded, note
from ..errors import UserError
from ..options import StoreOption
from . import commands_jobs, theme
from .access import ROOTS, TOKEN, TOKEN_FILE, is_loopback, read_token, split_roots
from .uploads import MOST_GIB, VARIABLE, most_bytes


def command(host: str, port: int, public_host: str | None = None) -> list[str]:
    """The command line of the server. UserError if it cannot work, or would serve others without a token.

    `public_host`: the name that browsers see where it is not `host`, as behind a proxy; others are refused.
    """
    if not is_loopback(host) and read_token() is None:
        raise UserError(
            f"--host {host}: whoever reaches another address than this machine's must show a token; give --token-file "
            f"FILE or set {TOKEN} (`python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one)"
        )
    if importlib.util.find_spec("streamlit") is None:
        raise UserError("the dashboard needs Streamlit: pip install 'kvmill[dashboard]'")
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"--port {port} on {host} cannot be used ({error.strerror}); choose another") from None
    app = Path(__file__).with_name("server.py")
    flags = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.enableCORS": "true",
        "server.enableXsrfProtection": "true",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "logger.hideWelcomeMessage": "true",  # it asks a host of others for this machine's address
        "theme.light.primaryColor": theme.BLUE,  # Streamlit's own is red, as errors are
        "theme.dark.primaryColor": theme.ACCENT_ON_DARK,
    }
    if public_host:
        flags["browser.serverAddress"] = public_host
    return [sys.executable, "-m", "streamlit", "run", str(app), *(f"--{key}={value}" for key, value in flags.items())]


def environment(
    store: Path | str, token_file: Path | None, roots: Sequence[str], before: Mapping[str, str]
) -> dict[str, str]:
    """What the server finds in its environment: the store, where its token is, and what it may read."""
    given = dict(before) | {"KVMILL_STORE": str(store)}
    if token_file is not None:
        given[TOKEN_FILE] = str(token_file.absolute())
    if roots:
        whole = [root if "://" in root else str(Path(root).expanduser().absolute()) for root in roots]
        given[ROOTS] = ":".join([*split_roots(given.get(ROOTS, "")), *whole])
    return given


def _family(host: str) -> socket.AddressFamily:
    try:
        return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return socket.AF_INET


def register(app: typer.Typer) -> None:
    """Add `dashboard` and `jobs` to the command line."""
    commands_jobs.register(app)

    @app.command()
    @guarded
    def dashboard(
        host: Annotated[
            str, typer.Option(help="Address to serve; any but this machine's needs a token.")
        ] = "127.0.0.1",
        port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve.")] = 8501,
        public_host: Annotated[
            str | None,
            typer.Option(help="Name by which browsers reach it where that is not --host, as behind a proxy."),
        ] = None,
        token_file: Annotated[
            Path | None, typer.Option(help=f"File with the token that visitors must show (or {TOKEN}, {TOKEN_FILE}).")
        ] = None,
        input_root: Annotated[
            list[str] | None,
            typer.Option(help=f"A folder or URI that may be read besides the store; repeat for several ({ROOTS})."),
        ] = None,
        max_upload_gib: Annotated[
            float | None, typer.Option(min=0, help=f"Largest upload that is taken ({MOST_GIB}; {VARIABLE}).")
        ] = None,
        store: StoreOption = None,
    ) -> None:
        """Upload, replay, compare and plan in a browser. Or over HTTP (/api/v1)."""
        from ..traces.store import Store

        where = Store.open(store).where
        whole = environment(where, token_file, input_root or [], os.environ)
        if max_upload_gib is not None:
            whole[VARIABLE] = str(max_upload_gib)
        os.environ.update(whole)
        most_bytes()
        arguments = command(host, port, public_host)
        asked = "with a token" if read_token() else "for everybody on this machine"
        note(f"kvmill dashboard on http://{host}:{port} reading {where}, {asked}; stop it with Ctrl-C")
        # Streamlit takes this process's place: signals and the exit code need no passing on.
        os.execve(sys.executable, arguments, whole)
