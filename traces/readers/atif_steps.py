"""The steps of an ATIF document as chat messages, and what is told of each of the agent's calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..reading import Reject
from .atif_extra import ours
from .atif_metrics import usage_of
from .chat import Told
from .clock import when
from .content import text_of
from .counts import count, inside

_SUMMARY = re.compile(r"summar|compact|condens", re.IGNORECASE)
_ROLES = {"system": "system", "user": "user"}
_NOTED_ROLES = ("developer", "tool")


class Said:
    """`raw`: the messages; `told` and `metrics`: of each of the agent's calls; `shown`: how many of the messages were
    copied from another run; `exact`: whether kvmill wrote the document; `delegated`: whether sub-agents were called.
    """

    def __init__(self, steps: list[Any], losses: set[str], exact: bool) -> None:
        self.raw: list[dict[str, Any]] = []
        self.told: list[Told] = []
        self.metrics: list[Mapping[str, Any]] = []
        self.shown = 0
        self.losses = losses
        self.exact = exact
        self.delegated = False
        self._own = False
        for n, step in enumerate(steps, 1):
            if not isinstance(step, Mapping):
                raise Reject(f"step {n} is not an object")
            self._take(n, step)

    def _take(self, n: int, step: Mapping[str, Any]) -> None:
        copied = step.get("is_copied_context") is True
        if copied and self._own:
            self.losses.add("copied_context_dropped")
            return
        if step.get("source") == "agent":
            self._agent(step, copied)
        elif role := _ROLES.get(str(step.get("source"))):
            noted = ours(step).get("role")
            role = noted if noted in _NOTED_ROLES else role
            if role != "tool":
                self.raw.append({"role": role, "content": step.get("message"), "name": ours(step).get("name")})
            self._results(step)
        else:
            raise Reject(f"step {n} has the unknown source {str(step.get('source'))[:50]!r}")
        if copied:
            self.shown = len(self.raw)
            self.losses.add("copied_context")

    def _agent(self, step: Mapping[str, Any], copied: bool) -> None:
        calls = step.get("tool_calls") or []
        if not isinstance(calls, list):
            raise Reject("tool_calls is not a list")
        self.raw.append(
            {
                "role": "assistant",
                "content": step.get("message"),
                "reasoning_content": step.get("reasoning_content"),
                "reasoning": "" if self.exact else None,  # an empty one: the content begins with no thinking of its own
                "tool_calls": list(map(_call, calls)),
            }
        )
        made = step.get("llm_call_count")
        if count(made) is not None and made != 1:
            self.losses.add("missing_calls" if made else "steps_without_call")
        self._own = self._own or not copied
        self.metrics.append(inside(step, "metrics"))
        self.told.append(Told(usage_of(self.metrics[-1]), when(step.get("timestamp"))))
        self._results(step)

    def _results(self, step: Mapping[str, Any]) -> None:
        results = inside(step, "observation").get("results")
        for result in results if isinstance(results, list) else []:
            if not isinstance(result, Mapping):
                raise Reject("a result is not an object")
            if result.get("subagent_trajectory_ref"):
                self.delegated = True
                told = text_of(step.get("message"), set()) + str(result["subagent_trajectory_ref"])
                if step.get("source") == "system" and _SUMMARY.search(told):
                    self.losses.add("already_compacted")
                if result.get("content") is None:
                    continue
            known = ours(result)
            self.raw.append(
                {
                    "role": "tool",
                    "content": result.get("content"),
                    "tool_call_id": result.get("source_call_id") or known.get("tool_call_id"),
                    "name": known.get("name"),
                }
            )


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    raw = ours(call).get("arguments")
    arguments = raw if isinstance(raw, str) else call.get("arguments")
    return {"id": call.get("tool_call_id"), "function": {"name": call.get("function_name"), "arguments": arguments}}
