"""Commands of the store: sql, doctor, and store check, compact, remove, prune."""

from __future__ import annotations

from typing import Annotated

import typer

from ..console import answer, guarded, table
from ..errors import UserError
from ..options import JsonOption, StoreOption


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(sql)
    app.command()(doctor)
    store = typer.Typer(help="The store: look for damage, merge files, delete old runs.", no_args_is_help=True)
    store.command("check")(store_check)
    store.command("compact")(store_compact)
    store.command("remove")(store_remove)
    store.command("prune")(store_prune)
    app.add_typer(store, name="store")


@guarded
def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A query over the store's tables, e.g. SELECT * FROM cells LIMIT 5.")
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the store a question in SQL (DuckDB)."""
    import duckdb

    from ..traces.store import Store
    from ..traces.tables import SCHEMAS

    try:
        _require_question(query)
        found = Store.open(store).query(query)
    except duckdb.Error as error:
        raise UserError(f"{_reason(error)} (tables: {', '.join([*SCHEMAS, 'runs'])})") from None
    rows = found.to_pylist()
    columns = {name: name for name in found.column_names}
    answer({"columns": [*columns], "rows": rows}, as_json, lambda: f"{table(rows, columns)}\n({len(rows)} rows)")


@guarded
def doctor(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Say what this machine has and what a replay would miss."""
    from ..traces.store import Store
    from .doctor import examine, examine_text

    found = examine(Store.open(store))
    answer(found, as_json, lambda: examine_text(found))


@guarded
def store_check(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Look for missing, torn and unlisted files. Exit code 2 if there are any."""
    from ..traces.store import Store

    opened = Store.open(store)
    problems = opened.check()
    answer(
        {"store": str(opened), "problems": problems},
        as_json,
        lambda: "\n".join(problems) or f"{opened}: no problems in {len(opened.runs())} runs",
    )
    if problems:
        raise UserError(
            f"{len(problems)} problems in {opened}; `kvmill store compact` removes unlisted files, "
            "`kvmill store remove RUN` a damaged run"
        )


@guarded
def store_remove(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help='A run, as `kvmill sql "select run_id, kind from runs"` lists them.')
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete one run with all its rows. Also one whose files are damaged."""
    from ..traces.store import Store

    opened = Store.open(store)
    opened.remove(run)
    answer({"store": str(opened), "removed": run}, as_json, lambda: f"{run} is gone from {opened}")


@guarded
def store_compact(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Merge the files of finished runs, remove what no run lists."""
    from ..traces.store import Store

    opened = Store.open(store)
    removed = opened.compact()
    answer({"store": str(opened), "removed": removed}, as_json, lambda: f"{opened}: {removed} files removed")


@guarded
def store_prune(
    older_than: Annotated[str, typer.Option(help="How long ago a run must have ended: 90d, 12h, 4w.")],
    keep_last: Annotated[int, typer.Option(min=0, help="So many newest runs of each kind stay, however old.")] = 0,
    kind: Annotated[str | None, typer.Option(help="Only runs of this kind go: replay, ingest, plan, nightly …")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old runs. Running ones, accepted baselines and what a run that stays was made from stay."""
    from ..traces.retention import age, prunable
    from ..traces.store import Store

    opened = Store.open(store)
    found = prunable(opened, age(older_than), kind=kind, keep_last=keep_last)
    for run in found.going:
        if not dry_run:
            opened.remove(run.run_id)
    rows = [
        {"run": run.run_id, "kind": run.kind, "ended": run.finished_at, "bytes": sum(f.bytes for f in run.files)}
        for run in found.going
    ]
    what = "would go" if dry_run else "are gone"
    answer(
        {"store": str(opened), "dry_run": dry_run, "removed": rows, "kept": found.staying},
        as_json,
        lambda: "\n".join(
            [
                *(f"{row['run']}" for row in rows),
                *(f"stays: {run} ({why})" for run, why in found.staying.items()),
                f"{len(rows)} runs ({sum(row['bytes'] for row in rows) / 1e6:.1f} MB) {what}",
            ]
        ),
    )


def _reason(error: Exception) -> str:
    """What DuckDB says is wrong and what it knows instead, without the query and the arrow below it."""
    first, *more = str(error).strip().splitlines()
    return " ".join([first, *(line for line in more if line.startswith("Candidate"))])


def _require_question(query: str) -> None:
    """UserError unless the text is one statement that only reads: the store is written by runs alone."""
    import duckdb

    statements = duckdb.connect().extract_statements(query)
    reads = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    if len(statements) != 1 or statements[0].type not in reads:
        raise UserError("give one SELECT (or DESCRIBE, SUMMARIZE, EXPLAIN): the store is only read here")
