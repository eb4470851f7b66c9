"""What kvmill writes under `extra.kvmill` of an ATIF document: all that the format has no field for."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from .. import record
from ..reading import Reject
from ..trajectory import Trajectory
from .counts import inside

KEY = "kvmill"
TIMES = ("started_s", "duration_s", "tool_wait_s")


def ours(thing: Any) -> Mapping[str, Any]:
    """What kvmill noted on a document, step, call or result; empty if nothing."""
    return inside(thing, "extra", KEY)


def original(document: Mapping[str, Any]) -> Trajectory | None:
    """The trajectory a document was written from, without its messages; None if kvmill did not write it.

    Reject if what stands there is no trajectory: documents are edited by hand.
    """
    noted = ours(document).get("trajectory")
    if noted is None:
        return None
    try:
        _form().validate_python(noted)
        return record.load(json.dumps(noted))
    except (ValidationError, KeyError, TypeError, AttributeError, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise Reject(f"extra.kvmill.trajectory is no trajectory ({what})") from None


@functools.cache
def _form() -> TypeAdapter[Any]:
    return TypeAdapter(Trajectory)
