"""Trajectories as token ids: append-only segments that one session would hold, and the probes asked at their end.

A segment is encoded on its own, and an assistant segment in two parts at the end of the generation prompt, because
that is where a server's prompt ends and generated tokens begin.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .entities import Span, entity_spans, flag_tokens, places
from .render import Kind, Piece, render, render_question, render_reply
from .shield import Shield
from .template import TextTokenizer
from .trajectory import Probe, Trajectory

__all__ = ["ProbeTokens", "TextTokenizer", "TokenSegment", "TokenTrajectory", "tokenize", "tokenize_probe"]


REPEATS = {"repeat": "Let me repeat the previous thinking, tool call, and tool response.\n"}
RECALLS = {
    "recall": "Repeat the previous context exactly.",
    "recall_on": "Repeat the part of the previous context exactly, starting with",
}


_MARK = "kvq-request"


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """One segment. Offsets count from its start.

    `structural`: the template's control tokens, never ones that content only spells. `scored`: half-open span of what
    the model generated (assistant content and the closing control token), (0, 0) elsewhere. `closing`: tokens from the
    last structural token to the end, 2 for `<|im_end|>` and its newline; 1 where a template has no control tokens.
    `entities`: tokens of names, numbers, identifiers, paths and quotes (`traces/entities`). `frame`: of a tool segment,
    the tokens around the tools' own words, which are the template's.
    A `user` segment belongs to the turn it precedes; the prefix to turn 0.
    """

    kind: Kind
    turn: int
    ids: tuple[int, ...]
    structural: tuple[int, ...] = ()
    scored: tuple[int, int] = (0, 0)
    closing: int = 1
    entities: tuple[int, ...] = ()
    frame: tuple[int, ...] = ()


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
    """Render and encode a trajectory. UserError if the chat template refuses its messages."""
    shield = shield_of(tokenizer)
    pieces, losses = render(trajectory, tokenizer, shield)
    segments = tuple(segment_of(piece, tokenizer, shield) for piece in pieces)
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


def segment_of_ids(kind: Kind, turn: int, ids: Sequence[int], tokenizer: TextTokenizer) -> TokenSegment:
    """A segment of which only the ids are known: nothing in it is scored, and no words are told from their frame."""
    structural = tuple(offset for offset, token in enumerate(ids) if token in tokenizer.control_ids)
    text = tokenizer.decode(ids)
    entities = _entities(text, places(text, [tokenizer.token_text(token) for token in ids]), structural)
    closing = len(ids) - structural[-1] if structural else 1
    return TokenSegment(kind, turn, tuple(ids), structural, closing=closing, entities=entities)


def reply_segment(
    turn: int, head: Sequence[int], said: Sequence[int], closing: Sequence[int], tokenizer: TextTokenizer
) -> TokenSegment:
    """An assistant segment from the ids a model generated: after the template's `head`, before its `closing`."""
    segment = segment_of_ids("assistant", turn, [*head, *said, *closing], tokenizer)
    return replace(segment, scored=_scored(segment.ids, segment.structural, len(head)))


def shield_of(tokenizer: TextTokenizer) -> Shield:
    """What hides the spellings of the tokenizer's control tokens."""
    return Shield(tokenizer.token_text(index) for index in tokenizer.control_ids)


def _scored(ids: Sequence[int], structural: Sequence[int], head: int) -> tuple[int, int]:
    """The newline after the closing token is the template's; without a closing token all after the head counts."""
    closed = structural[-1] + 1 if structural and structural[-1] >= head else len(ids)
    return head, closed


def segment_of(piece: Piece, tokenizer: TextTokenizer, shield: Shield) -> TokenSegment:
    """A rendered piece as token ids."""
    head = encode(piece.head, tokenizer, shield)
    body = encode(piece.body, tokenizer, shield)
    ids = (*head, *body)
    structural = tuple(offset for offset, token in enumerate(ids) if token in tokenizer.control_ids)
    closing = len(ids) - structural[-1] if structural else 1
    scored = (0, 0)
    if piece.kind == "assistant":
        scored = _scored(ids, structural, len(head))
    text = shield.show(piece.head + piece.body)
    spelled = {token: tokenizer.token_text(token) for token in set(ids)}
    where = places(text, [spelled[token] for token in ids])
    entities = _entities(text, where, structural)
    frame: tuple[int, ...] = ()
    if piece.kind == "tool":
        words = set(flag_tokens(where, _contents(text, [shield.show(content) for content in piece.contents])))
        frame = tuple(offset for offset in range(len(ids)) if offset not in words)
    return TokenSegment(piece.kind, piece.turn, ids, structural, scored, closing, entities, frame)


def _contents(text: str, contents: Sequence[str]) -> list[Span]:
    """Where the messages' own words stand in a rendered text, in order; a template may trim them."""
    out: list[Span] = []
    at = 0
    for content in contents:
        for words in (content, content.strip()):
            if words and (found := text.find(words, at)) >= 0:
                at = found + len(words)
                out.append((found, at))
                break
    return out


def _entities(text: str, where: Sequence[Span], structural: Sequence[int]) -> tuple[int, ...]:
    """Flagged tokens. The template's control tokens spell no entity, and a name after one begins a line."""
    edges = itertools.accumulate((edge for offset in structural for edge in where[offset]), max)
    cuts = [0, *edges, len(text)]
    parts = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    plain = "".join("\n" * len(part) if number % 2 else part for number, part in enumerate(parts))
    return tuple(i for i in flag_tokens(where, entity_spans(plain)) if i not in set(structural))


def encode(text: str, tokenizer: TextTokenizer, shield: Shield) -> list[int]:
    """Ids of a text whose hidden spellings stay text."""
    return [token for part, meant in shield.split(text) for token in tokenizer.encode(part, meant)]
