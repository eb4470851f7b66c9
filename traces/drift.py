"""How far a recorded run and what a chat template makes of it are apart, turn by turn, with the cause.

Two things are compared. A session keeps what it holds and encodes only what is new; a server without sessions renders
everything anew for each call. Where the two differ in a token, a prefix cache ends. And the text of a call as it was
recorded is compared with the text that the template prints of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .recorded_ids import recorded
from .render import Transcript, groups
from .rendered import call_drift
from .shield import Shield
from .template import TextTokenizer
from .token_segments import TokenSegment, encode, segment_of, shield_of
from .trajectory import Trajectory, Turn

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class TurnDrift:
    """The context after a turn, held and rendered anew. Counts are tokens from the beginning of the run.

    `cause`: None if both are the same; `held` and `anew` are the texts at the first token that differs. `said_at`: the
    first token of the recorded reply that differs from its rendering, None if none does or none is recorded.
    """

    turn: int
    held_tokens: int
    anew_tokens: int
    shared_tokens: int
    cause: str | None = None
    held: str = ""
    anew: str = ""
    said_at: int | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """All turns, and the calls: how many the template prints otherwise than recorded, by how many characters.

    `calls_in_own_form`: printed in a form that is no JSON, so that no characters can be compared. `losses` are those of
    rendering, by name; `ids_not_used`: why recorded token ids are not used, "" if they are or if there are none.
    """

    turns: tuple[TurnDrift, ...]
    calls: int
    calls_changed: int
    call_characters: int
    calls_in_own_form: int
    losses: tuple[str, ...]
    ids_recorded: bool
    ids_not_used: str


def drift(trajectory: Trajectory, tokenizer: TextTokenizer) -> Drift:
    """Compare a run with its renderings. UserError if the chat template refuses its messages.

    Renders the context once a turn: time grows with the square of the number of turns.
    """
    shield = shield_of(tokenizer)
    transcript = Transcript(tokenizer, shield, trajectory.tools)
    segments = [segment_of(transcript.begin(trajectory.prefix), tokenizer, shield)]
    turns: list[TurnDrift] = []
    calls: list[int | None] = []
    thoughts: list[str] = []
    for number, turn in enumerate(trajectory.turns):
        before = len(segments)
        for kind, messages in groups(turn):
            piece = transcript.add(kind, number, messages)
            if piece is not None:
                segments.append(segment_of(piece, tokenizer, shield))
                text = shield.show(piece.head + piece.body)
                calls += [call_drift(text, call) for message in messages for call in message.tool_calls]
        thoughts += [turn.assistant.reasoning.strip()] if turn.assistant.reasoning else []
        said_at = _said_at(turn, segments[before:], number)
        turns.append(_turn(number, segments, before, transcript.whole(), thoughts, said_at, tokenizer, shield))
    used = recorded(trajectory, segments, tokenizer)
    known = [count for count in calls if count is not None]
    return Drift(
        turns=tuple(turns),
        calls=len(calls),
        calls_changed=sum(count != 0 for count in calls),
        call_characters=sum(known),
        calls_in_own_form=len(calls) - len(known),
        losses=transcript.losses(),
        ids_recorded=any(turn.ids for turn in trajectory.turns),
        ids_not_used=used.reason,
    )


def _turn(
    number: int,
    segments: Sequence[TokenSegment],
    before: int,
    whole: str,
    thoughts: Sequence[str],
    said_at: int | None,
    tokenizer: TextTokenizer,
    shield: Shield,
) -> TurnDrift:
    held = [token for segment in segments for token in segment.ids]
    anew = encode(whole, tokenizer, shield)
    shared = next((i for i, (a, b) in enumerate(zip(held, anew, strict=False)) if a != b), min(len(held), len(anew)))
    if shared == len(held) == len(anew):
        return TurnDrift(number, len(held), len(anew), shared, said_at=said_at)
    held_text, anew_text = tokenizer.decode(held), tokenizer.decode(anew)
    if held_text == anew_text:
        cause = "tokens merge across messages"
    elif any(held_text.count(thought) > anew_text.count(thought) for thought in thoughts):
        cause = "the template drops earlier thinking"
    elif not tokenizer.control_ids.isdisjoint(held[shared : shared + 1]):
        cause = "the template ends earlier messages otherwise"
    else:
        cause = "the template rewrites earlier messages"
    return TurnDrift(
        number,
        len(held),
        len(anew),
        shared,
        cause,
        tokenizer.decode(held[shared : shared + 8])[:_SHOWN],
        tokenizer.decode(anew[shared : shared + 8])[:_SHOWN],
        said_at,
    )


def _said_at(turn: Turn, segments: Sequence[TokenSegment], number: int) -> int | None:
    """Where the recorded reply's ids leave its rendered ones; the end that the template adds is not compared."""
    reply = next((s for s in segments if s.kind == "assistant" and s.turn == number), None)
    if turn.ids is None or not turn.ids.output or reply is None:
        return None
    begin, end = reply.scored
    rendered, said = reply.ids[begin:end], turn.ids.output
    differs = next((i for i, (a, b) in enumerate(zip(said, rendered, strict=False)) if a != b), None)
    if differs is None and not 0 <= len(rendered) - len(said) <= 1:
        return min(len(rendered), len(said))
    return differs
