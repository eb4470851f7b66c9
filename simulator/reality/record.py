"""`Record`: one recorded vLLM run, request by request and second by second."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError


@dataclass(frozen=True, slots=True)
class Record:
    """Per request (n,): prompt and output tokens, and the seconds, from the first arrival, at which it arrived, had its
    first token and its last one. Per second (m,): the moment, requests running and waiting, share of the cache in use
    (None where the run did not record it).

    `token_budget`, `max_sequences`: the engine's own settings. `blocks`: its pool, None where it was not recorded.
    """

    prompt: np.ndarray
    output: np.ndarray
    arrived: np.ndarray
    first: np.ndarray
    last: np.ndarray
    moments: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    used: np.ndarray | None
    token_budget: int
    max_sequences: int
    blocks: int | None


def read_record(requests: Path, series: Path, meta: Path) -> Record:
    """Read the three files of a run. InputError, naming file and line, when one is not what it should be."""
    rows = [_row(requests, number, line) for number, line in enumerate(requests.read_text().splitlines(), 1)]
    columns = {name: np.array([row[name] for row in rows], dtype=float) for name in _COLUMNS}
    start = columns["queued_ts"].min()
    engine = json.loads(meta.read_text())
    try:
        settings = engine["engine_kwargs"]
        budget, cap = int(settings["max_num_batched_tokens"]), int(settings["max_num_seqs"])
        began = datetime.fromisoformat(engine["started_at"]).timestamp()
    except KeyError as error:
        raise InputError(f"{meta.name}: no {error}") from None
    with series.open(newline="") as file:
        seconds = {name: [] for name in _SECONDS}
        for row in csv.DictReader(file):
            for name, values in seconds.items():
                values.append(float(row[name]))
    used = np.array(seconds["kv_cache_pct"]) / 100
    return Record(
        prompt=columns["input_toks"].astype(int),
        output=columns["output_toks"].astype(int),
        arrived=columns["queued_ts"] - start,
        first=columns["first_token_ts"] - start,
        last=columns["last_token_ts"] - start,
        moments=np.array(seconds["t"]) + began - columns["arrival_time"].min(),
        running=np.array(seconds["running"]),
        waiting=np.array(seconds["waiting"]),
        used=used if used.any() else None,
        token_budget=budget,
        max_sequences=cap,
        blocks=(engine.get("kv_cache") or {}).get("num_gpu_blocks"),
    )


_COLUMNS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_SECONDS = ("t", "running", "waiting", "kv_cache_pct")


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        return {name: row[name] for name in _COLUMNS}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path.name} line {number}: {error!r}; a recorded request has {', '.join(_COLUMNS)}"
        ) from None
