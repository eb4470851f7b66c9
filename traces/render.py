"""A trajectory as text, piece by piece, as one session sees it: append-only, message by message.

The text of a message is what the template adds when the message is appended. Where a template rewrites what came
before (it drops earlier thinking, for example), only what follows the previous message is taken, so that the pieces
still are what an append-only session holds; the loss is reported, and so is every character of content that does
not come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

from .rendered import missing, out_of_order, undescribed
from .shield import Shield
from .template import Abilities, TextTokenizer, Wire, abilities, join, schema_text, wire
from .trajectory import Message, ToolCall, Trajectory, Turn

Kind = Literal["prefix", "assistant", "tool", "user"]
_MARK = "kvq-last-message"


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment as text: `head` is the template's, `body` what the assistant generated, closing included.

    `contents` are the messages' own words, in order: what lies around them is the template's.
    """

    kind: Kind
    turn: int
    head: str
    body: str = ""
    contents: tuple[str, ...] = ()


def render(trajectory: Trajectory, tokenizer: TextTokenizer, shield: Shield) -> tuple[list[Piece], tuple[str, ...]]:
    """The pieces of a trajectory (spellings of control tokens hidden by `shield`) and the losses on the way."""
    transcript = Transcript(tokenizer, shield, trajectory.tools)
    pieces = [transcript.begin(trajectory.prefix)]
    for turn, said in enumerate(trajectory.turns):
        pieces += [piece for group in groups(said) if (piece := transcript.add(group[0], turn, group[1])) is not None]
    return pieces, transcript.losses()


def groups(turn: Turn) -> list[tuple[Kind, tuple[Message, ...]]]:
    """The messages of a turn as they become segments: each user message, the assistant's, all results together."""
    return [
        *(("user", (message,)) for message in turn.user),
        ("assistant", (turn.assistant,)),
        *([("tool", turn.tools)] if turn.tools else []),
    ]


class Transcript:
    """A conversation that grows: `begin` once, then `add` group by group, or `said` for what a model generated."""

    def __init__(self, tokenizer: TextTokenizer, shield: Shield, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._able, self._hidden, self._schemas = abilities(tokenizer), _Hidden(shield), tuple(tools)
        self._losses: list[str] = []
        self._lost: Counter[str] = Counter()
        self._calls: list[ToolCall] = []  # the last ones
        self._writer = _Writer(tokenizer, _tools(tools, self._able, shield, self._losses), self._able)

    def begin(self, messages: Sequence[Message]) -> Piece:
        """The prefix."""
        shown = [self._hidden.message(message) for message in messages]
        wires = _prefix(shown, self._schemas, self._able, self._hidden, self._losses)
        piece = Piece("prefix", 0, self._writer.start(wires))
        self._lost += missing(piece.head, shown, self._able)
        if self._able.schemas:
            self._lost["schema_text_dropped"] += undescribed(piece.head, self._hidden.json(self._schemas))
        return piece

    def add(self, kind: Kind, turn: int, messages: Sequence[Message]) -> Piece | None:
        """The messages of one segment; None if the template prints nothing of them."""
        shown = [self._hidden.message(message) for message in messages]
        wires = [wire(message, self._able, self._losses) for message in shown]
        wires = wires if self._able.tool_role else join(wires)
        head, body = self._writer.append(wires, generated=kind == "assistant")
        self._lost += missing(head + body, shown, self._able)
        self._calls = [call for message in shown for call in message.tool_calls] or self._calls
        self._lost["results_attributed_by_order"] += not self._able.ids and out_of_order(self._calls, shown)
        if not (head or body):
            return None
        return Piece(kind, turn, head, body, tuple(message.content for message in shown))

    def opening(self) -> str:
        """What the template puts before the model's next words."""
        return self._writer.generation_prompt()

    def closing(self) -> str:
        """What it puts after them."""
        return self._writer.closing()

    def said(self, content: str) -> None:
        """The model has generated `content` between `opening` and `closing`, and that is what the session holds.

        A template that prints it otherwise later on is a loss; the text is not changed for it.
        """
        shown = self._hidden.message(Message("assistant", content))
        held = self.opening() + shown.content + self.closing()
        head, body = self._writer.append([wire(shown, self._able, self._losses)], generated=True)
        self._lost["reply_printed_otherwise"] += head + body != held

    def whole(self) -> str:
        """The template's text for all that was said, rendered at once: what a server without a session would hold."""
        return self._writer.whole()

    def losses(self) -> tuple[str, ...]:
        """So far, by name: `code` or `code:COUNT`."""
        lost = {name: count for name, count in (self._lost + self._writer.losses).items() if count}
        counted = Counter(self._losses) | Counter(lost)
        once = {"template_without_tools", "developer_as_system", "system_as_user", "tool_role_as_user"}
        return tuple(name if name in once else f"{name}:{count}" for name, count in sorted(counted.items()))

    def fork(self) -> Transcript:
        """The same conversation, to go on in another way."""
        twin = copy(self)
        twin._losses, twin._lost, twin._writer = list(self._losses), Counter(self._lost), self._writer.fork()
        return twin


def render_reply(beginning: str, tokenizer: TextTokenizer) -> str:
    """What the template adds before the model's own words, and `beginning` as the first of these."""
    able = abilities(tokenizer)
    writer = _Writer(tokenizer, None, able)
    writer.start([{"role": "user", "content": "u"}])
    return writer.generation_prompt() + beginning


def render_question(question: str, tokenizer: TextTokenizer, shield: Shield) -> str:
    """What the template adds for one more user message and the start of the answer to it."""
    able = abilities(tokenizer)
    system: list[Wire] = [{"role": "system", "content": "s"}] if able.system else []
    writer = _Writer(tokenizer, None, able)
    writer.start([*system, {"role": "user", "content": "u"}])
    writer.append([{"role": "assistant", "content": "a"}], generated=True)
    asked, _ = writer.append([{"role": "user", "content": shield.hide(question)}], generated=False)
    return asked + writer.generation_prompt()


class _Writer:
    """Appends messages to one rendered conversation."""

    def __init__(self, tokenizer: TextTokenizer, tools: list[Wire] | None, able: Abilities) -> None:
        self._tokenizer, self._tools = tokenizer, tools
        may = {"user": able.repeats, "assistant": able.follows}
        self._alternating = [role for role, twice in may.items() if not twice]
        self._said: list[Wire] = []
        self._text = ""
        self.losses: Counter[str] = Counter()

    def start(self, messages: list[Wire]) -> str:
        self._said = list(messages)
        self._text = self._render(self._said)
        return self._text

    def generation_prompt(self) -> str:
        """What the template puts before the model's own words."""
        return self._follow([], True, self._render(self._said, True))

    def whole(self) -> str:
        """All that was said, rendered at once."""
        return self._render(self._said)

    def closing(self) -> str:
        """What the template puts after the model's own words, when they are the last message."""
        return self._render([*self._said, {"role": "assistant", "content": _MARK}]).rpartition(_MARK)[2]

    def fork(self) -> _Writer:
        twin = copy(self)
        twin._said, twin.losses = list(self._said), Counter(self.losses)
        return twin

    def append(self, messages: list[Wire], generated: bool) -> tuple[str, str]:
        """What the messages add: the template's part, and what the model generates of it."""
        role = messages[0]["role"]
        if self._said[-1]["role"] == role and role in self._alternating:
            return self._repeat(messages, generated)
        prompt = self.generation_prompt() if generated else ""
        after = self._render([*self._said, *messages])
        added = self._follow(messages, False, after)
        self._said += messages
        self._text = after
        if not generated:
            return added, ""
        if not added.startswith(prompt):
            self.losses["generation_prompt_differs"] += 1
            prompt = prompt[: _shared(prompt, added)]
        return prompt, added[len(prompt) :]

    def _repeat(self, messages: list[Wire], generated: bool) -> tuple[str, str]:
        """A message after one of its role, for a template that wants roles to alternate: as if one stood between."""
        self.losses["roles_forced"] += 1
        other = "assistant" if messages[0]["role"] == "user" else "user"
        between = [*self._said, {"role": other, "content": _MARK}]
        tail = self._render(between).rpartition(_MARK)[2]
        added = self._render([*between, *messages]).rpartition(_MARK)[2].removeprefix(tail)
        prompt = self._render(between, True).rpartition(_MARK)[2].removeprefix(tail) if generated else added
        self._said = join([*self._said, *messages], ("system", "user", "assistant"))
        self._text = self._render(self._said)
        prompt = prompt[: _shared(prompt, added)]
        return prompt, added[len(prompt) :]

    def _follow(self, messages: list[Wire], prompt: bool, after: str) -> str:
        if after.startswith(self._text):
            return after[len(self._text) :]
        if not prompt:
            self.losses["template_not_prefix_preserving"] += 1
        # The template rewrote the past: mark the end of the last message and take what follows it.
        marked = [*self._said[:-1], {**self._said[-1], "content": _MARK}]
        _, found, tail = self._render(marked).rpartition(_MARK)
        _, found_again, rest = self._render([*marked, *messages], prompt).rpartition(_MARK)
        if found and found_again and not rest.startswith(tail):
            # The last message of all may end with another control token than one that is followed.
            tail, rest = self._past_control(tail), self._past_control(rest)
        if found and found_again and rest.startswith(tail):
            return rest[len(tail) :]
        return after[_shared(self._text, after) :]

    def _past_control(self, text: str) -> str:
        spelled = (self._tokenizer.token_text(index) for index in self._tokenizer.control_ids)
        return text[max((len(word) for word in spelled if word and text.startswith(word)), default=0) :]

    def _render(self, messages: list[Wire], prompt: bool = False) -> str:
        return self._tokenizer.render(messages, self._tools, prompt)


class _Hidden:
    def __init__(self, shield: Shield) -> None:
        self._hide, self.json = shield.hide, shield.hide_json

    def message(self, message: Message) -> Message:
        calls = tuple(
            ToolCall(self._hide(call.id), self._hide(call.name), self._hide(call.arguments))
            for call in message.tool_calls
        )
        reasoning = self._hide(message.reasoning) if message.reasoning else None
        return replace(message, content=self._hide(message.content), tool_calls=calls, reasoning=reasoning)


def _tools(tools: Sequence[Mapping[str, Any]], able: Abilities, shield: Shield, losses: list[str]) -> list[Wire] | None:
    if not tools:
        return None
    if able.schemas:
        return [dict(shield.hide_json(tool)) for tool in tools]
    losses.append("template_without_tools")
    return None


def _prefix(
    messages: list[Message],
    tools: Sequence[Mapping[str, Any]],
    able: Abilities,
    hidden: _Hidden,
    losses: list[str],
) -> list[Wire]:
    if tools and not able.schemas:
        schemas = hidden.message(Message("system", schema_text(tools)))
        first_other = next((i for i, m in enumerate(messages) if m.role not in ("system", "developer")), len(messages))
        messages = [*messages[:first_other], schemas, *messages[first_other:]]
    return join([wire(message, able, losses) for message in messages])


def _shared(one: str, other: str) -> int:
    """Length of the common beginning."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
