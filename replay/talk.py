"""What is said in a session, as the segments that replay would make of the same messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UserError, unknown
from ..traces.readers.chat import ROLES, Reject, message_of, tools_of
from ..traces.render import Kind, Piece, Transcript
from ..traces.shield import Shield
from ..traces.template import TextTokenizer
from ..traces.tokens import TokenSegment, encode, reply_segment, segment_of, segment_of_ids, shield_of
from ..traces.trajectory import Message, Turn


def read_message(
    role: str,
    text: str,
    tool_calls: Sequence[Mapping[str, Any]],
    name: str | None,
    tool_call_id: str | None,
    place: int,
) -> Message:
    """A message from what a chat API would hold; `place` names calls without an id. UserError if it is none."""
    if role not in ROLES:
        raise unknown("role", role, ROLES)
    if tool_calls and role != "assistant":
        raise UserError(f"tool_calls belong to an assistant message, not to one of role {role}")
    raw = {"role": role, "content": text, "tool_calls": list(tool_calls), "name": name, "tool_call_id": tool_call_id}
    try:
        return message_of(raw, place, set())
    except Reject as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Frame:
    """What the template puts around the model's next words: ids before them, text and ids after them."""

    head: tuple[int, ...]
    printed: str
    closing: tuple[int, ...]


@dataclass
class Talk:
    """A conversation. `waiting` messages (P, or the tools' answers so far) become a segment when another kind comes.

    `turn` is the turn in progress; `answered` tells whether its assistant has spoken.
    """

    tokenizer: TextTokenizer
    shield: Shield
    transcript: Transcript
    messages: list[Message] = field(default_factory=list)
    waiting: list[Message] = field(default_factory=list)
    begun: bool = False
    turn: int = 0
    answered: bool = False

    @classmethod
    def start(cls, tokenizer: TextTokenizer, tools: Sequence[Mapping[str, Any]]) -> Talk:
        """Nothing said yet. UserError if `tools` are no schemas."""
        try:
            schemas = tools_of(list(tools))
        except Reject as error:
            raise UserError(str(error)) from None
        shield = shield_of(tokenizer)
        return cls(tokenizer, shield, Transcript(tokenizer, shield, schemas))

    def fork(self) -> Talk:
        """The same, to go on in another way."""
        own = {"messages": list(self.messages), "waiting": list(self.waiting)}
        return replace(self, transcript=self.transcript.fork(), **own)

    def wait(self, message: Message) -> TokenSegment | None:
        """One more message of P, or of the tools' answers; the segment that would come of it by now."""
        self.waiting.append(message)
        return self.fork().flush()

    def take(self, prefix: Sequence[Message], turns: Sequence[Turn]) -> list[TokenSegment]:
        """The segments of a recorded beginning: P and whole turns, which close. Only before anything else was said."""
        self.waiting += prefix
        self.messages += prefix
        found = [self.flush()]
        for turn in turns:
            found += [self.add("user", message) for message in turn.user]
            found.append(self.add("assistant", turn.assistant))
            self.waiting += turn.tools
            found.append(self.flush())
            self.messages += [*turn.user, turn.assistant, *turn.tools]
            self.close()
        return [segment for segment in found if segment is not None]

    def flush(self) -> TokenSegment | None:
        """The segment of what waits. None if nothing does, or if the template prints nothing of it."""
        waiting, self.waiting = self.waiting, []
        if not self.begun:
            self.begun = True
            return self._segment(self.transcript.begin(waiting))
        return self._segment(self.transcript.add("tool", self.turn, waiting)) if waiting else None

    def add(self, kind: Kind, message: Message) -> TokenSegment | None:
        """The segment of one message."""
        return self._segment(self.transcript.add(kind, self.turn, [message]))

    def frame(self) -> Frame:
        """What surrounds the model's next words."""
        opening, printed = self.transcript.opening(), self.transcript.closing()
        head, closing = (tuple(encode(text, self.tokenizer, self.shield)) for text in (opening, printed))
        return Frame(head, printed, closing)

    def growing(self, ids: Sequence[int]) -> TokenSegment:
        """The assistant's segment as far as it has come."""
        return segment_of_ids("assistant", self.turn, ids, self.tokenizer)

    def reply(self, head: Sequence[int], said: Sequence[int], closing: Sequence[int]) -> TokenSegment:
        """The assistant's segment when it has come to its end."""
        return reply_segment(self.turn, head, said, closing, self.tokenizer)

    def said(self, text: str) -> None:
        """The model has said this, between what `frame` gave."""
        self.transcript.said(text)
        self.messages.append(Message("assistant", text))
        self.answered = True

    def close(self) -> None:
        """The turn is over."""
        self.turn += 1
        self.answered = False

    def _segment(self, piece: Piece | None) -> TokenSegment | None:
        return None if piece is None else segment_of(piece, self.tokenizer, self.shield)
