"""The options that commands share: one spelling, one sentence of help. Imported by `commands*.py` alone."""

from __future__ import annotations

from typing import Annotated

import typer

StoreOption = Annotated[
    str | None, typer.Option("--store", help="A folder or s3://… (KVMILL_STORE, else ./kvmill-store).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
