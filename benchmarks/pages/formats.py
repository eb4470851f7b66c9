"""docs/formats.md from figures: what is read, what becomes of it, and what became of real files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvmill.benchmarks.pages import formats_text as text
from kvmill.traces.losses import LOSSES, RENDERING
from kvmill.traces.redact import KINDS
from kvmill.traces.writers.lost import LOST

Row = Mapping[str, Any]


def page(found: Row, described: Sequence[Row]) -> str:
    """The whole page. `found` is what `benchmarks.formats.figures` returns, `described` its list of readers."""
    parts = [
        "# Trace formats",
        "Written by `kvmill bench formats --data FOLDER --write`; do not edit.",
        text.OPENING,
        "## Formats",
        _formats(described),
        text.FILES,
        text.RUNS,
        "## Losses",
        text.LOSSES,
        _two("loss", LOSSES),
        text.RENDERED,
        _two("loss", RENDERING),
        text.DRIFT,
        text.REJECTS,
        "## Redaction",
        text.REDACTION,
        _two("kind", KINDS),
        text.NOT_ANONYMOUS,
        "## Export",
        text.EXPORT,
        _two("lost", LOST),
        "## Real files",
        text.REAL,
        _files(found["files"]),
        "## What each reader says of its format",
        "\n\n".join(f"**`{row['name']}`** {row['text']}" for row in described),
        text.ENGINES,
        text.SAMPLES,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _formats(described: Sequence[Row]) -> str:
    lines = ["| format | holds | real files | what it is |", "|---|---|---|---|"]
    for row in described:
        tried = "read" if row["verified"] else "unverified"
        lines.append(f"| `{row['name']}` | {row['kind']} | {tried} | {row['title']} |")
    return "\n".join(lines)


def _two(title: str, rows: Mapping[str, str]) -> str:
    return "\n".join(
        [f"| {title} | meaning |", "|---|---|", *(f"| `{name}` | {said} |" for name, said in rows.items())]
    )


def _files(rows: Sequence[Row]) -> str:
    head = (
        "| file | format | accepted | rejected | turns | calls | losses | long texts left out, characters |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *map(_file, rows)])


def _file(row: Row) -> str:
    if row["error"] is not None:
        return f"| `{row['file']}` | – | 0 | all: {_cell(row['error'])} | – | – | – | – |"
    rejected = f"{row['rejected']:,}" + (f": {_cell('; '.join(row['reasons']))}" if row["reasons"] else "")
    accepted = f"{row['accepted']:,}" + (f" (and {row['chained']} inside them)" if row["chained"] else "")
    runs = row["trajectories"] > 0
    cells = (
        f"`{row['file']}`",
        row["format"] or "–",
        accepted,
        rejected,
        f"{row['turns']:,}" if runs else "–",
        f"{row['calls']:,}" if runs else "–",
        ", ".join(f"{count} `{name}`" for name, count in sorted(row["losses"].items())) or ("none" if runs else "–"),
        ", ".join(f"`{_cell(place)}` {count:,}" for place, count in row["left_out"]) or ("none" if runs else "–"),
    )
    return "| " + " | ".join(cells) + " |"


def _cell(said: str) -> str:
    return " ".join(said.replace("|", "\\|").split())
