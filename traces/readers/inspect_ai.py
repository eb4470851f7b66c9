"""Inspect logs: `.json`, or `.eval` archives, whose members arrive as `{member, value}`; schema versions 1 to 4.

A sample is one run. Long strings are moved to attachments; its messages are the state at the end, its events say what
each call was given and took. Version numbers are no gate: files say 3 and 4 that differ in nothing read here.
Described by inspect.aisi.org.uk/eval-logs.html and UKGovernmentBEIS/inspect_ai, src/inspect_ai/log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..items import items_of, passed_on, refused
from ..reading import Bad, Format, Item, Record, Source
from .counts import inside
from .inspect_sample import NAME, run_of

_OTHER_MEMBERS = ("_journal/", "summaries.json", "reductions.json")


def sniff(record: Any) -> bool:
    """Whether the record is a log, or a member of an archive named as Inspect names them."""
    if not isinstance(record, Mapping):
        return False
    member, value = record.get("member"), inside(record, "value")
    if isinstance(member, str):
        sample = member.startswith("samples/") and "epoch" in value
        return sample or (member == "header.json" and "eval" in value) or member.startswith(_OTHER_MEMBERS)
    return {"version", "status", "eval"} <= set(record)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The samples of each log. The header of an archive comes first; a run that was killed has only a journal's."""
    header: Mapping[str, Any] = {}
    journal: Mapping[str, Any] = {}
    alone: Record | None = None
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
            continue
        member, value = inside(found.value).get("member"), inside(found.value, "value")
        if member is None:
            yield from _log(found)
        elif member == "header.json":
            header, alone = value, found
        elif member == "_journal/start.json":
            journal = value
        elif isinstance(member, str) and member.startswith("samples/"):
            alone = None
            sample = Record(found.place, value, found.repaired)
            yield from items_of(partial(run_of, log=header or journal), sample)
        elif not (isinstance(member, str) and member.startswith(_OTHER_MEMBERS)):
            yield refused(found, "no member of an Inspect log")
    if alone is not None:
        yield refused(alone, "a log without samples")


def _log(found: Record) -> Iterator[Item]:
    samples = inside(found.value).get("samples")
    if not isinstance(samples, list) or not samples:
        yield refused(found, "a log without samples" if inside(found.value) else "not an object")
        return
    for sample in samples:
        yield from items_of(partial(run_of, log=found.value), Record(found.place, sample, found.repaired))


FORMAT = Format(
    NAME,
    "Inspect logs: .json, or .eval archives; one run a sample, with target and scores",
    "trajectories",
    sniff,
    gather=gather,
    verified=True,
)
