"""`Host`: what runs in a worker's process. It holds one object, and calls its methods."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Host:
    """Made in the worker's process, in the driver's folder where that exists, so that relative paths mean the same."""

    def __init__(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        own = Path(__file__).resolve().parents[2]
        # Ray puts the driver's folder on the path. Where that is a checkout of ours, other packages would find our
        # folders under the names of packages that they look for.
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != own]
        self._held: Any = None

    def open(self, make: Callable[..., Any], *args: Any) -> tuple[str, Any]:
        """Make the object; returns the machine's id and what the object says of itself (`about`), if it does."""
        import ray

        self._held = make(*args)
        return ray.get_runtime_context().get_node_id(), getattr(self._held, "about", None)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object."""
        return getattr(self._held, method)(*args)
