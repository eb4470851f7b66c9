"""DuckDB in memory over the listed Parquet files: one view per table, and `runs`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import UserError
from .manifest import FileEntry, RunInfo
from .tables import SCHEMAS

if TYPE_CHECKING:
    import duckdb

_WILDCARD = re.compile(r"([*?\[])")
RUNS = pa.schema(
    [
        *[(name, pa.string()) for name in ("run_id", "kind", "state", "config")],
        ("seed", pa.int64()),
        *[(name, pa.string()) for name in ("device", "git_revision", "versions", "created_at", "finished_at")],
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def connect(
    runs: Sequence[RunInfo], path_of: Callable[[RunInfo, FileEntry], Path], tables: Collection[str] = tuple(SCHEMAS)
) -> duckdb.DuckDBPyConnection:
    """An in-memory connection in UTC with a view per table of `SCHEMAS` and `runs`.

    A view reads exactly the files listed now; a table without files, or not among `tables`, is an empty view with the
    right types. Columns that older files lack are null. UserError of `path_of` if a listed file is missing.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
    connection.execute("SET TimeZone = 'UTC'")
    files: dict[str, list[str]] = {name: [] for name in SCHEMAS}
    for info in runs:
        for entry in info.files:
            if entry.table in tables:
                path = _WILDCARD.sub(r"[\1]", str(path_of(info, entry)))
                files[entry.table].append(path.replace("'", "''"))
    views = []
    for name, schema in SCHEMAS.items():
        typed = ", ".join(f'NULL::{_sql_type(f.type)} AS "{f.name}"' for f in schema)
        body = f"SELECT {typed} WHERE false"
        if files[name]:
            listed = ", ".join(f"'{path}'" for path in files[name])
            body += f" UNION ALL BY NAME SELECT * FROM read_parquet([{listed}], union_by_name = true)"
        views.append(f"CREATE VIEW {name} AS {body};")
    connection.execute("\n".join(views))
    connection.register("listed_runs", pa.Table.from_pylist(list(map(_row, runs)), schema=RUNS))
    connection.execute("CREATE TABLE runs AS SELECT * FROM listed_runs")
    connection.unregister("listed_runs")
    return connection


def missing(path: str, run_id: str) -> UserError:
    """The error for a listed file that is not there."""
    return UserError(
        f"missing file {path} of run {run_id}; run `kvmill store check`, then restore the file or delete the run"
    )


def _sql_type(type: pa.DataType) -> str:
    if isinstance(type, pa.ListType):
        return _sql_type(type.value_type) + "[]"
    return {"string": "VARCHAR", "int64": "BIGINT", "uint64": "UBIGINT", "double": "DOUBLE", "bool": "BOOLEAN"}[
        str(type)
    ]


def _row(info: RunInfo) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(info, name) for name in RUNS.names if hasattr(info, name)}
    row["config"], row["versions"] = json.dumps(info.config), json.dumps(info.versions)
    row["rows"] = _total(entry.rows for entry in info.files)
    row["bytes"] = _total(entry.bytes for entry in info.files)
    return row


def _total(values: Iterable[int]) -> int:
    return sum(values)
