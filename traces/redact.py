"""Personal data and secrets out of recorded runs, before anything is stored: on by default.

What is found is replaced by a stand-in of the same shape, the same one for the same value wherever it occurs, so that
a trace still makes sense, its lengths stay, and an agent that copies an address from a tool result still does.
Stand-ins are derived by a keyed hash (`redact_key`). Rules match behind a literal or inside a cluster of digits, so
that one pass decides where they are tried at all; every rule takes time linear in the text.

Redaction is no anonymisation: names in free prose, postal addresses and whatever has no shape stay.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from .record import tool_call
from .redact_addresses import colon_addresses, emails, homes
from .redact_known import Known
from .redact_names import names, people, signatures
from .redact_numbers import lettered, numbers
from .redact_places import placed
from .redact_secrets import secrets
from .redact_stand_ins import StandIns
from .redact_view import BETWEEN, Find, View, unescaped
from .trajectory import Label, Message, Probe, ToolCall, Trajectory, Turn

T = TypeVar("T")
_BATCH = 4_000_000
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_WORD = re.compile(r"[^\s\"'<>\\]+")
_ENCODINGS: tuple[Callable[[str], str], ...] = (functools.partial(quote, safe=""), quote, quote_plus)
KINDS = {
    "private_key": "private keys in PEM form",
    "jwt": "JSON web tokens",
    "api_key": "keys and tokens of known services",
    "password": "passwords in URLs and assignments",
    "secret": "values of keys such as `client_secret`, `Authorization` headers",
    "email": "e-mail addresses",
    "name": "names under keys that say so or before an address in brackets, and their copies",
    "card": "payment cards (Luhn)",
    "iban": "bank accounts (mod 97)",
    "national_id": "national, tax and passport numbers",
    "phone": "telephone numbers",
    "ipv4": "IPv4 addresses",
    "ipv6": "IPv6 addresses",
    "mac": "MAC addresses",
    "home_path": "user names in home paths",
    "user": "those users as owners of files and at prompts",
}
# Of two rules that overlap, the earlier one of this list decides.
_RULES: tuple[Callable[[View, StandIns], Iterator[Find]], ...] = (
    secrets,
    placed,
    emails,
    names,
    signatures,
    lettered,
    numbers,
    colon_addresses,
    homes,
)


class Redactor:
    """Redacts text and counts what it replaced, by kind, in `counts`.

    `key`: of the stand-ins. Without one a guess can be confirmed by trying it out; the store's own is in `redact_key`.
    """

    def __init__(self, key: bytes = b"") -> None:
        self.counts: Counter[str] = Counter()
        self._stand_ins = StandIns(key)

    def text(self, text: str) -> str:
        """`text` with every find replaced."""
        return self._twice(text, lambda text, change: change(text))

    def value(self, value: Any) -> Any:
        """The same for all strings inside JSON data, keys included."""
        return self._twice(value, _value)

    def trajectory(self, trajectory: Trajectory) -> Trajectory:
        """All text of a trajectory: what was said, arguments, tools, probes, label, meta.

        Recorded token ids spell the original text: they are dropped where anything was replaced.
        """
        before = self.counts.total()
        changed = self._twice(trajectory, _trajectory)
        if self.counts.total() == before or all(turn.ids is None for turn in changed.turns):
            return changed
        turns = tuple(replace(turn, ids=None) for turn in changed.turns)
        return replace(changed, turns=turns, losses=tuple(sorted({*changed.losses, "ids_dropped"})))

    def _twice(self, value: T, over: Callable[[T, Callable[[str], str]], T]) -> T:
        """First all texts are looked through, as one, then all are changed: a copy may come before what explains it."""
        texts: dict[str, str] = {}

        def look(text: str) -> str:
            texts[text] = text
            return text

        def change(text: str) -> str:
            self.counts.update(kinds.get(text, ()))
            return texts[text]

        over(value, look)
        kinds: dict[str, list[str]] = {}
        for text, finds in self._finds(list(texts)).items():
            texts[text] = _with(text, finds)
            kinds[text] = [find.kind for find in finds]
        return over(value, change) if kinds else value

    def _finds(self, texts: list[str]) -> dict[str, list[Find]]:
        """What is replaced in which text; places count from the text's start."""
        known = Known(self._stand_ins)
        batches = [(batch, self._rules(batch, known)) for batch in _batches(texts)]
        out: dict[str, list[Find]] = {}
        for batch, finds in batches if any(finds for _, finds in batches) else ():
            starts = list(itertools.accumulate((len(text) + len(BETWEEN) for text in batch), initial=0))
            for find in _apart([*finds, *known.finds(View(BETWEEN.join(batch)))]):
                number = bisect.bisect_right(starts, find.start) - 1
                start, text = starts[number], batch[number]
                if find.end <= start + len(text):
                    moved = Find(find.start - start, find.end - start, find.kind, find.stand_in)
                    out.setdefault(text, []).append(moved)
        return out

    def _rules(self, batch: list[str], known: Known) -> list[Find]:
        """What the rules find in texts put together; copies of it are `known` from then on."""
        view = View(BETWEEN.join(batch))
        finds = _apart([*_ruled(view, self._stand_ins), *_in_urls(view, self._stand_ins)])
        for found, find in {(view.text[f.start : f.end], f.kind): f for f in finds}.items():
            known.add(unescaped(found[0]), find)
        for first, last in people(view) if finds else ():
            known.person(first, last)
        return finds


def _ruled(view: View, stand_ins: StandIns) -> Iterator[Find]:
    return (find for rule in _RULES for find in rule(view, stand_ins))


def _in_urls(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """What the rules find in percent-encoded words once these are decoded."""
    for match in _WORD.finditer(view.text) if _PERCENT.search(view.text) else ():
        word = match.group()
        for plain in dict.fromkeys((unquote(word), unquote_plus(word))) if "%" in word else ():
            at = 0
            for find in _apart(list(_ruled(View(plain), stand_ins))):
                found = plain[find.start : find.end]
                encode = next((e for e in _ENCODINGS if word.find(e(found), at) >= 0), None)
                if encode is not None:
                    start = word.find(encode(found), at)
                    at = start + len(encode(found))
                    yield Find(match.start() + start, match.start() + at, find.kind, encode(find.stand_in))


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Texts in groups of bounded length: a long run is not held several times over."""
    batch: list[str] = []
    length = 0
    for text in texts:
        if batch and length + len(text) > _BATCH:
            yield batch
            batch, length = [], 0
        batch.append(text)
        length += len(text)
    yield batch


def _apart(finds: list[Find]) -> list[Find]:
    """The finds in order, without those that overlap with one of an earlier rule."""
    ranked = sorted(enumerate(finds), key=lambda item: (item[1].start, item[0]))
    kept: list[tuple[int, Find]] = []
    for rank, find in ranked:
        if kept and find.start < kept[-1][1].end:
            if rank > kept[-1][0]:
                continue
            kept.pop()
        kept.append((rank, find))
    return [find for _, find in kept]


def _with(text: str, finds: list[Find]) -> str:
    parts, done = [], 0
    for find in finds:
        parts += [text[done : find.start], find.stand_in]
        done = find.end
    return "".join([*parts, text[done:]])


def _value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if isinstance(key, str) else key: _value(item, change) for key, item in value.items()}
    return [_value(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def _replaced(noun: T, values: Mapping[str, Any]) -> T:
    """The noun with these values, itself if it has them already: most texts hold nothing to redact."""
    same = all(getattr(noun, name) is value for name, value in values.items())
    return noun if same else replace(noun, **values)  # pyright: ignore[reportArgumentType]


def _all(items: tuple[T, ...], change: Callable[[T], T]) -> tuple[T, ...]:
    """The same tuple if every item stays what it is."""
    changed = tuple(map(change, items))
    return items if all(map(operator.is_, changed, items)) else changed


def _trajectory(run: Trajectory, change: Callable[[str], str]) -> Trajectory:
    def message(said: Message) -> Message:
        changed = {
            "content": change(said.content),
            "tool_calls": _all(said.tool_calls, call),
            "tool_call_id": said.tool_call_id and change(said.tool_call_id),
            "name": said.name and change(said.name),
            "reasoning": said.reasoning and change(said.reasoning),
        }
        return _replaced(said, changed)

    def call(made: ToolCall) -> ToolCall:
        id, name, arguments = change(made.id), change(made.name), change(made.arguments)
        same = (id, name, arguments) == (made.id, made.name, made.arguments)
        return made if same else tool_call(id, name, arguments)

    def turn(one: Turn) -> Turn:
        changed = {
            "assistant": message(one.assistant),
            "tools": _all(one.tools, message),
            "user": _all(one.user, message),
        }
        return _replaced(one, changed)

    def probe(asked: Probe) -> Probe:
        return replace(
            asked,
            question=change(asked.question),
            answer_prefix=change(asked.answer_prefix),
            candidates=_all(asked.candidates, change),
        )

    label = run.label
    return replace(
        run,
        family=change(run.family),
        prefix=_all(run.prefix, message),
        turns=_all(run.turns, turn),
        tools=tuple(_value(tool, change) for tool in run.tools),
        probes=_all(run.probes, probe),
        label=label and Label(label.scorer, _value(label.value, change), tuple(map(call, label.gold_actions))),
        model=run.model and change(run.model),
        meta=_value(run.meta, change),
    )
