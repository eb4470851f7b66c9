"""Ray itself: a cluster found or started, and left as it was. The only file beside `crew` and `host` that knows Ray."""

from __future__ import annotations

import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ...console import note
from ...errors import UserError
from .shares import Machine, cores

_STORE_BYTES = 256 << 20  # of shared memory for objects in flight; what exceeds it goes to disk
_CONNECT_S = 5.0
_LONGEST_FOLDER = 40  # Ray's sockets lie below it, and a socket's path has 107 bytes


def ray_itself() -> Any:
    """The `ray` package. UserError where it is not installed."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UserError("--executor ray needs Ray: pip install 'kvmill[ray]'") from None
    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connected to the cluster at `address`, else at RAY_ADDRESS, else to one of this machine that ends with the block.

    A connection that is open already is used. Nothing of Ray's goes to stdout meanwhile. UserError where there is no
    cluster at the address.
    """
    ray = ray_itself()
    with ExitStack() as stack:
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS") or None
            stack.enter_context(started() if address is None else _joined(address))
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray tells of dead workers on stdout, where answers belong
        yield


@contextmanager
def started() -> Iterator[None]:
    """A cluster of this machine, behind a token of its own, in a folder that only this user can read."""
    ray = ray_itself()
    with ExitStack() as stack:
        _prepare(stack)
        stack.enter_context(_environment({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": None, **_own_token()}))
        folder = Path(tempfile.mkdtemp(prefix="kvmill-", dir=_short_folder()))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(ray.shutdown)
        note(f"starting a Ray cluster on this machine, {cores()} cores")
        ray.init(
            address="local",
            num_cpus=cores(),
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=str(folder / "ray"),  # Ray opens its own folder to everybody: the one above it stays shut
        )
        yield


@contextmanager
def _joined(address: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    if "://" in address or (address != "auto" and not (host and port.isdigit())):
        raise UserError(f"Ray cluster {address!r}: give HOST:PORT or auto, on a machine of the cluster")
    ray = ray_itself()
    with ExitStack() as stack:
        _prepare(stack)
        stack.callback(ray.shutdown)
        try:
            if address != "auto":  # Ray itself tries for a minute
                socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UserError(f"no Ray cluster at {address} ({first}); start one with `ray start --head`") from None
        yield


def _prepare(stack: ExitStack) -> None:
    """Ray takes SIGTERM over, and tells much; afterwards all is as it was."""
    if threading.current_thread() is threading.main_thread():
        stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    logger = logging.getLogger("ray")
    stack.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.ERROR)


@functools.cache
def _own_token() -> Mapping[str, str]:
    """A token in the environment, one per process since Ray remembers it, unless the user has one.

    Left alone, Ray makes one and writes it into a file that everybody can read.
    """
    theirs = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    if theirs or (Path.home() / ".ray" / "auth_token").exists():
        return {}
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _short_folder() -> str | None:
    return None if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"


@contextmanager
def _environment(given: Mapping[str, str | None]) -> Iterator[None]:
    """Ray is told by the environment; None takes a variable away. Afterwards all is as it was, whatever Ray set."""
    before = {name: os.environ.get(name) for name in given}
    _set(given)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def machines() -> list[Machine]:
    """The machines that are alive in the connected cluster."""
    resources = [node["Resources"] for node in ray_itself().nodes() if node["Alive"]]
    return [Machine(int(each.get("CPU", 0)), int(each.get("GPU", 0))) for each in resources]
