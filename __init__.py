"""kvmill: how many GPUs can be given back by compacting the KV cache, and at what cost.

The verbs of the command line are functions here, imported on first use (`kvmill.plan(...)`).
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_VERBS = ("read_traces", "run_replay", "results", "recommend", "simulate", "plan", "validate", "select", "session")
__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module 'kvmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_VERBS])
