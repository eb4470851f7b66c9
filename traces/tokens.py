"""Trajectories as token ids: append-only segments that one session would hold, and the probes asked at their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .recorded_ids import recorded
from .render import Kind, render, render_question, render_reply
from .template import TextTokenizer
from .token_segments import TokenSegment, encode, reply_segment, segment_of, segment_of_ids, shield_of
from .trajectory import Probe, Trajectory

__all__ = [
    "Kind",
    "ProbeTokens",
    "TextTokenizer",
    "TokenSegment",
    "TokenTrajectory",
    "encode",
    "reply_segment",
    "segment_of",
    "segment_of_ids",
    "shield_of",
    "tokenize",
    "tokenize_probe",
]


REPEATS = {"repeat": "Let me repeat the previous thinking, tool call, and tool response.\n"}
RECALLS = {
    "recall": "Repeat the previous context exactly.",
    "recall_on": "Repeat the part of the previous context exactly, starting with",
}
_MARK = "kvq-request"


@dataclass(frozen=True, slots=True)
class TokenTrajectory:
    """Segments in order: prefix, then per turn user*, assistant, tool. `losses` are the trajectory's and rendering's.

    `prompts` by name: beginnings of a reply in which the model repeats what it said and read (`REPEATS`), and the
    parts of a request to repeat (`recall_prompts`).

    A loss is `code` or `code:COUNT`; counts of `content_*` and `reasoning_dropped` are characters.
    """

    id: str
    family: str
    source: str
    segments: tuple[TokenSegment, ...]
    losses: tuple[str, ...] = ()
    prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Length of the whole context."""
        return sum(len(segment.ids) for segment in self.segments)

    def turns(self) -> list[tuple[TokenSegment, ...]]:
        """The segments of each turn, the prefix left out."""
        count = 1 + max((segment.turn for segment in self.segments), default=-1)
        rest = [segment for segment in self.segments if segment.kind != "prefix"]
        return [tuple(segment for segment in rest if segment.turn == turn) for turn in range(count)]


@dataclass(frozen=True, slots=True)
class ProbeTokens:
    """`stem`: user message, generation prompt and answer prefix; then one of `candidates`, `answer` the right one."""

    stem: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]
    answer: int


def tokenize(trajectory: Trajectory, tokenizer: TextTokenizer) -> TokenTrajectory:
    """Render and encode a trajectory. UserError if the chat template refuses its messages.

    Token ids that were recorded with it are used where they are this tokenizer's (`recorded_ids`).
    """
    shield = shield_of(tokenizer)
    pieces, losses = render(trajectory, tokenizer, shield)
    segments = tuple(segment_of(piece, tokenizer, shield) for piece in pieces)
    segments = recorded(trajectory, segments, tokenizer).segments or segments
    known = [loss for loss in losses if loss not in trajectory.losses]
    return TokenTrajectory(
        trajectory.id,
        trajectory.family,
        trajectory.source,
        segments,
        (*trajectory.losses, *known),
        {**repeat_prompts(tokenizer), **recall_prompts(tokenizer)},
    )


def repeat_prompts(tokenizer: TextTokenizer) -> dict[str, tuple[int, ...]]:
    """The token ids of `REPEATS`, each as the beginning of the model's next message."""
    shield = shield_of(tokenizer)
    return {
        name: tuple(encode(render_reply(shield.hide(words), tokenizer), tokenizer, shield))
        for name, words in REPEATS.items()
    }


def recall_prompts(tokenizer: TextTokenizer, *, inside: bool = False) -> dict[str, tuple[int, ...]]:
    """Token ids of the requests `RECALLS`, and as `recall_reply` what stands between a request and the model's words.

    A request is a user message of its own, or, `inside`, the end of the user message that the context is.
    """
    shield = shield_of(tokenizer)
    before, _, after = render_question(_MARK, tokenizer, shield).partition(_MARK)
    opening = "\n\n" if inside else before
    parts = {name: opening + shield.hide(words) for name, words in RECALLS.items()}
    return {name: tuple(encode(t, tokenizer, shield)) for name, t in {**parts, "recall_reply": after}.items()}


def tokenize_probe(probe: Probe, tokenizer: TextTokenizer) -> ProbeTokens:
    """A probe as the template would ask it after the last turn. Candidates get a leading space."""
    shield = shield_of(tokenizer)
    asked = encode(render_question(probe.question, tokenizer, shield), tokenizer, shield)
    stem = (*asked, *tokenizer.encode(probe.answer_prefix, False))
    candidates = tuple(tuple(tokenizer.encode(f" {candidate}", False)) for candidate in probe.candidates)
    return ProbeTokens(stem, candidates, probe.answer)
