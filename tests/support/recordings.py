"""Agent runs as a tau-bench harness writes them, made here: an airline agent that looks bookings up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOWNS = ("Lisbon", "Oslo", "Quito", "Hanoi", "Dakar", "Perth", "Turin", "Osaka")


def tau_bench(path: Path, runs: int = 2, turns: int = 4) -> Path:
    """A JSON file of `runs` episodes with `turns` calls each, and one record that is none."""
    path.write_text(json.dumps([*(_episode(n, turns) for n in range(runs)), {"task_id": "torn", "traj": "nothing"}]))
    return path


def _episode(number: int, turns: int) -> dict[str, Any]:
    said: list[dict[str, Any]] = [
        {"role": "system", "content": "# Airline agent policy\nLook a booking up before you speak of it."},
        {"role": "user", "content": f"Where do my {turns} bookings go? My mail is anna{number}@postal.net."},
    ]
    for turn in range(turns):
        code = f"BK{number}{turn}07"
        call = {"name": "get_booking", "arguments": json.dumps({"code": code})}
        said.append(
            {
                "role": "assistant",
                "content": f"I look {code} up.",
                "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}],
            }
        )
        town = TOWNS[(number + turn) % len(TOWNS)]
        found = {"code": code, "destination": town, "seat": f"{turn + 3}C", "status": "confirmed"}
        said.append({"role": "tool", "tool_call_id": f"c{turn}", "name": "get_booking", "content": json.dumps(found)})
    said.append({"role": "assistant", "content": "They are all confirmed."})
    actions = [{"name": "get_booking", "kwargs": {"code": f"BK{number}007"}}]
    return {"task_id": number, "trial": 0, "reward": 1.0, "traj": said, "info": {"task": {"actions": actions}}}
