"""Made recordings to measure ingest with: in shape like tau-bench runs, 20 to 200 kB each, and like a request log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from kvmill.traces.samples.words import CITIES, NAMES, SERVICES, STATIONS, WEEKDAYS

_WORDS = [word.lower() for word in (*STATIONS, *SERVICES, *CITIES, *WEEKDAYS)]
_DIFFERENT = 64  # runs that are made; then they come again under other numbers


def runs(megabytes: float, seed: int = 0) -> Iterator[bytes]:
    """Lines of a results file, together at least so long; no two are equal."""
    made = [json.dumps(_run(random.Random(f"{seed}/{n}"))) for n in range(_DIFFERENT)]
    size = number = 0
    while size < megabytes * 1e6:
        line = made[number % _DIFFERENT].replace("case zero", f"case {number}", 1).encode() + b"\n"
        size, number = size + len(line), number + 1
        yield line


def requests(megabytes: float, seed: int = 0) -> Iterator[bytes]:
    """Lines of a Mooncake log, together at least so long: sessions that grow by 1 to 8 blocks of 512 tokens."""
    chance = random.Random(seed)
    size = clock = block = 0
    sessions: list[list[int]] = [[] for _ in range(50)]
    while size < megabytes * 1e6:
        session = chance.choice(sessions)
        if len(session) > 60:
            session.clear()
        grown = chance.randint(1, 8)
        session.extend(range(block, block + grown))
        block, clock = block + grown, clock + chance.randint(1, 500)
        row = {"timestamp": clock, "input_length": 512 * len(session) - chance.randint(0, 500), "output_length": 300}
        line = json.dumps(row | {"hash_ids": session}).encode() + b"\n"
        size += len(line)
        yield line


def _run(chance: random.Random) -> dict[str, Any]:
    target = int(20_000 * 10 ** chance.random())
    policy = f"# Rail agent policy\n\nThis is case zero.\n{_text(chance, 6000)}"
    said: list[dict[str, Any]] = [{"role": "system", "content": policy}]
    said.append({"role": "user", "content": _text(chance, 150)})
    size, calls = 6200, 0
    while size < target:
        calls += 1
        ticket = f"{chance.randrange(16**6):06X}"
        arguments = json.dumps({"ticket_id": ticket, "passengers": [{"first_name": chance.choice(NAMES)}]})
        found = [_trip(chance) for _ in range(chance.choice((1, 2, 4, 8, 20)))]
        result = json.dumps({"status": "ok", "ticket_id": ticket, "trips": found})
        call = {"id": f"call_{calls}", "type": "function", "function": {"name": "get_trips", "arguments": arguments}}
        text = _text(chance, 150) if chance.random() < 0.4 else None
        said.append({"role": "assistant", "content": text, "tool_calls": [call]})
        said.append({"role": "tool", "tool_call_id": call["id"], "name": "get_trips", "content": result})
        if chance.random() < 0.3:
            said.append({"role": "assistant", "content": _text(chance, 250)})
            said.append({"role": "user", "content": _text(chance, 100)})
        size += len(result) + len(arguments) + 400
    said.append({"role": "assistant", "content": _text(chance, 200)})
    return {"task_id": 0, "reward": 1.0, "trial": 0, "info": {"task": {"actions": []}}, "traj": said}


def _trip(chance: random.Random) -> dict[str, Any]:
    day = f"2024-05-{chance.randint(1, 28):02d}"
    return {
        "train": f"RX{chance.randrange(1000):03d}",
        "date": day,
        "from": chance.choice(CITIES),
        "price": chance.randrange(20, 400),
        "note": _text(chance, 60),
    }


def _text(chance: random.Random, length: int) -> str:
    words: list[str] = []
    size = 0
    while size < length:
        word = chance.choice(_WORDS) if chance.random() < 0.95 else str(chance.randrange(10_000))
        words.append(word + (".\n" if chance.random() < 0.05 else ""))
        size += len(word) + 1
    return " ".join(words)
