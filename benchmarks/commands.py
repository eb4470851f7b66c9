"""`kvmill bench`: runs one file of this folder."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..console import answer, guarded
from ..errors import unknown

HERE = Path(__file__).parent


def names() -> list[str]:
    """The benchmarks there are: one file per question; files without a `main` are what they share."""
    return sorted(p.stem for p in HERE.glob("*.py") if "\ndef main(" in p.read_text())


def register(app: typer.Typer) -> None:
    """Add `bench` to the command line."""

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    @guarded
    def bench(
        context: typer.Context,
        name: Annotated[
            str | None, typer.Argument(metavar="NAME", help="Which benchmark; without it, the list of them.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="The list as one JSON object.")] = False,
    ) -> None:
        """Run one benchmark, with its own flags after the name."""
        known = names()
        if name is None:
            answer({"benchmarks": known}, as_json, lambda: "\n".join(known) or "no benchmark is in this version")
            return
        if name not in known:
            raise unknown("benchmark", name, known)
        sys.argv = [f"kvmill bench {name}", *context.args, *(["--json"] if as_json else [])]
        runpy.run_module(f"kvmill.benchmarks.{name}", run_name="__main__", alter_sys=False)
