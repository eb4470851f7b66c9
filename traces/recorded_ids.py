"""Token ids that a server recorded with a run, in place of those that its text is encoded to, where they are the same.

Text does not say which tokens a model wrote: `Pan`+`tom` and `P`+`antom` read alike, and a parsed and rewritten call
reads otherwise. Recorded ids do, but only for the tokenizer and the chat template they come from. They are used if the
run's meta names this tokenizer's fingerprint; without one, if every recorded turn decodes to just what the template
prints; never if it names another one. Ids are used for a whole run or not at all: no session mixes two vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .template import TextTokenizer
from .token_segments import TokenSegment, reply_segment, segment_of_ids
from .trajectory import Trajectory

_NO_TOKEN = 2**31
FINGERPRINTS = ("tokenizer", "template")  # keys of a trajectory's meta


@dataclass(frozen=True, slots=True)
class Recorded:
    """Segments made of recorded ids, None if they cannot be used; `reason` says why, "" if there are no ids at all."""

    segments: tuple[TokenSegment, ...] | None
    reason: str = ""


class _Unlike(ValueError):
    """The recorded ids do not have the shape of what the template prints."""


def recorded(trajectory: Trajectory, rendered: Sequence[TokenSegment], tokenizer: TextTokenizer) -> Recorded:
    """The run's segments from its recorded ids. `rendered` are the same segments as the text is encoded."""
    ids = [turn.ids for turn in trajectory.turns]
    if not any(ids):
        return Recorded(None)
    if not all(one and one.output for one in ids):
        return Recorded(None, "some turns have no recorded ids")
    named = [trajectory.meta[key] for key in FINGERPRINTS if isinstance(trajectory.meta.get(key), str)]
    if named and any(fingerprint != tokenizer.fingerprint for fingerprint in named):
        return Recorded(None, "the recorded ids belong to another tokenizer or chat template")
    tokens = {token for one in ids if one for token in (*one.prompt, *one.output)}
    if not all(0 <= token < _NO_TOKEN and tokenizer.token_text(token) for token in tokens):
        return Recorded(None, "some of the recorded ids are no tokens of this model")
    try:
        segments = _cut(trajectory, rendered)
        if not named and (at := _unlike(segments, rendered, tokenizer)) is not None:
            raise _Unlike(f"in turn {at} they decode to another text than the template prints")
    except _Unlike as error:
        return Recorded(None, f"the recorded ids name no tokenizer, and {error}" if not named else str(error))
    return Recorded(tuple(_segment(ids, like, tokenizer) for ids, like in segments))


def _cut(trajectory: Trajectory, rendered: Sequence[TokenSegment]) -> list[tuple[list[int], TokenSegment]]:
    """Recorded ids, segment by segment, each with the rendered segment in whose place it stands."""
    waiting: list[TokenSegment] = []  # segments before the next reply
    owed: list[int] = []  # the end of a reply that the template adds, and the next prompt begins with
    out: list[tuple[list[int], TokenSegment]] = []
    for segment in rendered:
        if segment.kind != "assistant":
            waiting.append(segment)
            continue
        ids = trajectory.turns[segment.turn].ids
        assert ids is not None
        prompt, head = list(ids.prompt), list(segment.ids[: segment.scored[0]])
        if prompt[: len(owed)] != owed:
            raise _Unlike(f"before turn {segment.turn} they do not go on with the template's end of a reply")
        if prompt[len(prompt) - len(head) :] != head:
            raise _Unlike(f"before turn {segment.turn} they do not end with the template's opening of a reply")
        out += _apart(prompt[len(owed) : len(prompt) - len(head)], waiting)
        said, closing = list(ids.output), list(segment.ids[len(segment.ids) - segment.closing :])
        written = next(n for n in range(len(closing), -1, -1) if said[len(said) - n :] == closing[:n])
        owed, waiting = closing[written:], []
        out.append(([*head, *said, *owed], segment))
    # What follows the last reply was in no prompt.
    return out + [(list(segment.ids), segment) for segment in waiting]


def _apart(ids: list[int], segments: Sequence[TokenSegment]) -> list[tuple[list[int], TokenSegment]]:
    """Ids of neighbouring segments, one after the other."""
    if len(segments) == 1:
        return [(ids, segments[0])]
    if ids != [token for segment in segments for token in segment.ids]:
        raise _Unlike(f"before turn {segments[0].turn if segments else 'the next'} their messages cannot be told apart")
    return [(list(segment.ids), segment) for segment in segments]


def _unlike(
    segments: Sequence[tuple[list[int], TokenSegment]], rendered: Sequence[TokenSegment], tokenizer: TextTokenizer
) -> int | None:
    """The first turn whose ids decode to another text than the rendered ones."""
    pairs = zip(segments, rendered, strict=True)
    return next((like.turn for (ids, _), like in pairs if tokenizer.decode(ids) != tokenizer.decode(like.ids)), None)


def _segment(ids: list[int], like: TokenSegment, tokenizer: TextTokenizer) -> TokenSegment:
    if tuple(ids) == like.ids:
        return like
    if like.kind == "assistant":
        head = like.scored[0]
        return reply_segment(like.turn, ids[:head], ids[head:], (), tokenizer)
    return segment_of_ids(like.kind, like.turn, ids, tokenizer)
