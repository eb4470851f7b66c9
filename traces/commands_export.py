"""`kvmill traces export`: recorded runs as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import answer, guarded
from ..options import JsonOption, StoreOption

if TYPE_CHECKING:
    from .export import Exported


@guarded
def export(
    traces: Annotated[
        str, typer.Argument(metavar="TRACES", help="As of `replay --traces`: samples, last, an id, …")
    ] = "last",
    to: Annotated[str, typer.Option("--to", help="atif (ATIF 1.7) or aiperf (mooncake_trace with messages).")] = "atif",
    out: Annotated[
        Path, typer.Option("--out", help="A folder for a file per run, or a file that ends in .jsonl for all.")
    ] = Path("kvmill-export"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write recorded runs for other programs. Says what the format could not hold."""
    from .export import export as export_to
    from .store import Store

    done = export_to(Store.open(store), traces, to, out, force)
    answer(done, as_json, lambda: _said(done))


def _said(done: Exported) -> str:
    from .writers.lost import LOST

    lines = [f"{done.exported} trajectories written to {done.out} ({done.bytes:,} bytes)"]
    lines += [f"lost in {count} of them: {LOST[code]} ({code})" for code, count in sorted(done.lost.items())]
    return "\n".join(lines if done.lost else [*lines, "nothing is lost: read again, they are the same"])
