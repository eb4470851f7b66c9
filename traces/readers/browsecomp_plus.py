"""BrowseComp-Plus runs: one JSON a run, its items thinking, calls with their output, and text.

The question is not in the file: it is looked up in a `queries.tsv` (id, tab, question) beside it. Nor are the prompt
around it, the tool schemas, and which calls were made at once; answers are encrypted upstream. Described by
texttron/BrowseComp-Plus, search_agent/*_client.py; a client that stores `raw_messages` is read from those.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory
from .chat import is_messages, trajectory_of
from .counts import finite, inside

NAME = "browsecomp-plus"
_KEPT = ("query_id", "status")


def sniff(record: Any) -> bool:
    """Whether the record is a run of one query."""
    return (
        isinstance(record, Mapping)
        and {"query_id", "tool_call_counts"} <= set(record)
        and isinstance(record.get("result"), list)
    )


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs, with their questions where a list of them lies beside."""
    return each(partial(_run, queries=_queries(source)), records)


def _queries(source: Source) -> dict[str, str]:
    lines = [line for name in source.names("*queries*.tsv") for line in (source.text(name) or "").splitlines()]
    pairs = (line.split("\t", 2) for line in lines)
    return {pair[0].strip(): _unquoted(pair[1].strip()) for pair in pairs if len(pair) > 1}


def _unquoted(cell: str) -> str:
    quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if quoted else cell


def _run(record: Any, queries: Mapping[str, str]) -> Trajectory:
    if not isinstance(record, Mapping) or not isinstance(record.get("result"), list):
        raise Reject("no list of results")
    losses = set()
    raw = record.get("raw_messages")
    if isinstance(raw, list) and is_messages(raw):
        said: list[Any] = raw
    else:
        question = queries.get(str(record.get("query_id"))[:100])
        losses |= {"no_system_prompt", "batching_unknown", "prompt_unknown" if question else "no_query"}
        said = [{"role": "user", "content": question or ""}, *_said(record["result"])]
    if record.get("status") != "completed":
        losses.add("interrupted")
    usage = {name: value for name, value in inside(record, "usage").items() if finite(value) is not None}
    meta = {key: record[key] for key in _KEPT if isinstance(record.get(key), (int, str))}
    model = inside(record, "metadata").get("model")
    return trajectory_of(
        NAME,
        NAME,
        said,
        losses=losses,
        model=model if isinstance(model, str) else None,
        # Sums over all calls; whether the input includes cached tokens depends on the client.
        meta=meta | ({"usage": usage} if usage else {}),
    )


def _said(items: list[Any]) -> Iterator[dict[str, Any]]:
    """Chat messages: thinking and text belong to the call that follows them, and every call to a message of its own."""
    thoughts: list[str] = []
    texts: list[str] = []
    for n, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise Reject(f"result {n} is not an object")
        kind, output = item.get("type"), item.get("output")
        if kind == "reasoning":
            if texts:
                yield _message(thoughts, texts)
            thoughts += _texts(output)
        elif kind == "output_text":
            texts += _texts(output)
        elif kind == "tool_call":
            if item.get("tool_name") is not None:
                function = {"name": item["tool_name"], "arguments": item.get("arguments")}
                yield _message(thoughts, texts) | {"tool_calls": [{"id": f"call_{n}", "function": function}]}
                if output is not None:
                    yield {"role": "tool", "tool_call_id": f"call_{n}", "content": "\n".join(_texts(output))}
            else:
                yield {"role": "tool", "content": "\n".join(_texts(output))}
        else:
            raise Reject(f"result {n} has the unknown type {str(kind)[:50]!r}")
    if thoughts or texts:
        yield _message(thoughts, texts)


def _message(thoughts: list[str], texts: list[str]) -> dict[str, Any]:
    """The assistant's message; what it holds is taken out of the lists."""
    made = {"role": "assistant", "reasoning_content": "\n".join(thoughts), "content": "\n".join(texts)}
    thoughts.clear()
    texts.clear()
    return made


def _texts(output: Any) -> list[str]:
    """The texts of an output: one, a list of them, or of parts with a text each."""
    parts = output if isinstance(output, list) else [output]
    texts = [inside(part).get("text", part) if isinstance(part, Mapping) else part for part in parts]
    return [
        text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in texts if text is not None
    ]


FORMAT = Format(
    NAME,
    "BrowseComp-Plus runs: one JSON a run, its question in a queries.tsv beside it",
    "trajectories",
    sniff,
    gather=gather,
)
