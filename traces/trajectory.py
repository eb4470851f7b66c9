"""The nouns of recorded agent runs: what was said, in which turns, and what the source could not tell.

Everything is a frozen dataclass. A `Trajectory` is prefix P (system, tools, first user message) and turns;
a `Turn` is one model call and the tool responses that answer it: the unit T_t of compaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "developer", "user", "assistant", "tool"]
NOT_JUDGED = "none"  # the scorer of a run in which there is nothing to be asked


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the raw recorded string; `parsed` its JSON object, or None if it is not one."""

    id: str
    name: str
    arguments: str
    parsed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `content` is always text; part lists are flattened by the reader, which records losses."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call in four disjoint buckets; None where the source does not say."""

    fresh_input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedIds:
    """Token ids as a server recorded them for one model call.

    `prompt`: those appended to the context before the reply (at turn 0 the whole prompt); `output`: the reply's own.
    The trajectory's meta may say which `tokenizer` and chat `template` they belong to.
    """

    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """`user` messages precede the assistant's (empty in turn 0: they are in P); `tools` answer its calls.

    `started_s` counts from the start of the trajectory; `tool_wait_s` is the time between the end of this
    model call and the start of the next.
    """

    assistant: Message
    tools: tuple[Message, ...] = ()
    user: tuple[Message, ...] = ()
    started_s: float | None = None
    duration_s: float | None = None
    tool_wait_s: float | None = None
    usage: Usage | None = None
    ids: RecordedIds | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A question asked after the last turn, answered by the likelihood of `candidates` after `answer_prefix`.

    `fact_turn` is the turn whose tool response holds the fact: the probe's age is counted from there.
    """

    id: str
    kind: str
    question: str
    answer_prefix: str
    candidates: tuple[str, ...]
    answer: int
    fact_turn: int


@dataclass(frozen=True, slots=True)
class Label:
    """Ground truth. `scorer` says how an answer is judged (choice, exact, contains, flag, reward, …, or none)."""

    scorer: str
    value: Any = None
    gold_actions: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One agent run. `losses` lists what the source could not tell or the reader could not keep."""

    id: str
    source: str
    family: str
    prefix: tuple[Message, ...]
    turns: tuple[Turn, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    probes: tuple[Probe, ...] = ()
    label: Label | None = None
    model: str | None = None
    losses: tuple[str, ...] = ()
    already_compacted: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    def messages(self) -> list[Message]:
        """All messages in order."""
        out = list(self.prefix)
        for turn in self.turns:
            out += [*turn.user, turn.assistant, *turn.tools]
        return out


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a request log: arrival, session, lengths, prefix blocks, tool wait.

    `prefix_blocks` are block hashes of the input (0…2^64−1) of `block_tokens` tokens each, None where absent;
    `tool_wait_s` is the gap between the end of the session's previous request and this one.
    """

    id: str
    source: str
    arrival_s: float
    input_tokens: int
    output_tokens: int
    session: str | None = None
    turn: int | None = None
    prefix_blocks: tuple[int, ...] | None = None
    block_tokens: int | None = None
    tool_wait_s: float | None = None
