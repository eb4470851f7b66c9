"""Makes the bundled samples: `python -m kvmill.traces.samples.generate` writes the files again, byte for byte.

They are synthetic. Four families of agent runs, 40 each, 11 turns, 8 probes a run:

* `registry`: a search agent over a fictional registry (station → keeper, keeper → city).
* `operations`: an agent that reads logs (service → owner, owner → city).
* `coding`: an agent that reads code; asked at the end which class a job calls, and in which module a class lives.
* `planning`: an agent that asks people what they need in the first turns, plans, and is asked for it at the end.

Each fact takes one turn; the next assistant message restates it and issues the next call, as plain text: rendered
tool calls would change what was measured. Closing turns without any fact follow, so that the last quarter of the
context holds no candidate and truncation is at chance, not biased to the latest candidates. The answer prefix of a
probe repeats the wording of its fact; the candidates are the four values of the run, so chance is 0.25. The word
lists and the shape were found by trying them on a 135M model.

A third set, `stress`, has longer runs for memory and latency only.

What to keep in mind when reading results on them:

* A small model is weak on facts in the middle of the context even with the full cache; nothing was selected for it.
* Probes of one run are not independent: intervals resample runs.
* The recorded assistant text restates each fact, so teacher forcing hands every policy the value a second time.
* "Two-hop" may be the mere nearness of two facts: it is no proof of reasoning.
* A delayed policy holds its last turns raw (about 140 tokens each): compare sizes, not only keep ratios.
* Log-likelihood of the right answer and its margin separate policies better than accuracy does.
"""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

from ..record import dump
from ..trajectory import Trajectory
from .coding import coding
from .operations import operations
from .planning import planning
from .registry import registry
from .stress import EACH, SIZES, stress

RUNS = 40
SEED = 2026
MAKERS = {"registry": registry, "operations": operations, "coding": coding, "planning": planning}
MAKERS |= dict.fromkeys(SIZES, stress)
FILES = {family: (family,) for family in MAKERS if family not in SIZES} | {"stress": tuple(SIZES)}


def generate(family: str, index: int, seed: int = SEED) -> Trajectory:
    """Run `index` of a family; the same for the same arguments."""
    dice = random.Random(f"{family}/{index}/{seed}")
    return MAKERS[family](dice, f"{family}-{index:02d}")


def text(file: str) -> str:
    """All runs of a file, one line each."""
    runs = [(family, index) for family in FILES[file] for index in range(EACH if family in SIZES else RUNS)]
    return "".join(dump(generate(family, index)) + "\n" for family, index in runs)


def main() -> None:
    """Write the files beside this one. No name and no time goes into them, so they only change with the text."""
    for file in FILES:
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as packed:
            packed.write(text(file).encode())
        (Path(__file__).parent / f"{file}.jsonl.gz").write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
