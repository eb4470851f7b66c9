"""One segment of a trajectory as token ids: how it is encoded, and what its tokens are.

A segment is encoded on its own, and an assistant segment in two parts at the end of the generation prompt, because
that is where a server's prompt ends and generated tokens begin.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .entities import Span, entity_spans, flag_tokens, places
from .render import Kind, Piece
from .shield import Shield
from .template import TextTokenizer

__all__ = ["Kind", "TokenSegment", "encode", "reply_segment", "segment_of", "segment_of_ids", "shield_of"]


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
