"""Rows to Parquet files: the schema is checked on the way in, files appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import unknown
from .tables import SCHEMAS

Rows = Sequence[Mapping[str, Any]] | pa.Table
_ROW_GROUP, _ROW_GROUP_BYTES = 100_000, 64 << 20
_LONG = ("record",)  # columns of long texts, of which no two are the same


def schema_of(table: str) -> pa.Schema:
    """The declared schema of a table."""
    if table not in SCHEMAS:
        raise unknown("table", table, SCHEMAS, "the store")
    return SCHEMAS[table]


def to_table(table: str, rows: Rows, run_id: str) -> pa.Table:
    """Rows under the declared schema: `run_id` filled in, missing columns null, unknown columns refused.

    NaN is refused too: what was not measured is null, and a NaN would poison every average later.
    """
    schema = schema_of(table)
    if not isinstance(rows, Sequence):
        _refuse_unknown(table, rows.column_names, schema)
        out = conform(rows, schema)
    else:
        _refuse_unknown(table, set().union(*rows), schema)
        out = pa.Table.from_pylist(list(rows), schema=schema)
    for name in schema.names:
        column = out.column(name)
        if pa.types.is_floating(column.type) and np.isnan(column.drop_null().to_numpy()).any():
            raise ValueError(f"NaN in column {name!r} of table {table!r}; a value that was not measured is None")
    index = schema.get_field_index("run_id")
    return out.set_column(index, schema.field(index), out.column(index).fill_null(run_id))


def to_tables(tables: Mapping[str, Rows], run_id: str) -> dict[str, pa.Table]:
    """The same for several tables; those without rows are left out."""
    made = {name: to_table(name, rows, run_id) for name, rows in tables.items()}
    return {name: table for name, table in made.items() if table.num_rows}


def _refuse_unknown(table: str, given: Iterable[str], schema: pa.Schema) -> None:
    for name in given:
        if name not in schema.names:
            raise unknown("column", name, schema.names, f"table {table!r}")


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` in its order: cast where needed, null where absent."""
    columns = [
        table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def write(path: Path, tables: Iterable[pa.Table], schema: pa.Schema, run_id: str) -> int:
    """Write tables one after the other into one file, small ones joined to row groups, and return its rows.

    The file is complete and on disk before it gets its name; making the name durable is the caller's part.
    """
    metadata = {**(schema.metadata or {}), b"run_id": run_id.encode()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    rows = 0
    short = [f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema if f.name not in _LONG]
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": short, "write_statistics": short}
    with pq.ParquetWriter(temporary, schema.with_metadata(metadata), **options) as writer:
        waiting: list[pa.Table] = []
        for table in tables:
            waiting.append(table.replace_schema_metadata(metadata))
            rows += table.num_rows
            held = sum(part.num_rows for part in waiting), sum(part.nbytes for part in waiting)
            if held[0] >= _ROW_GROUP or held[1] >= _ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting).combine_chunks())
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 (the tests count these calls)
    return rows


def read(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of one file, a row group or a part of it at a time, under today's schema also if an older kvmill wrote
    it.
    """
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):  # a batch would go on into the next one, however long its texts are
        for batch in file.iter_batches(_ROW_GROUP, row_groups=[group]):
            yield conform(pa.Table.from_batches([batch]), schema)


def problem(path: Path, rows: int, size: int) -> str | None:
    """What is wrong with a listed file, in words, or None."""
    if not path.is_file():
        return f"missing file {path}"
    if size and path.stat().st_size != size:
        return f"torn file {path}: {path.stat().st_size} bytes instead of {size}"
    try:
        found = pq.ParquetFile(path).metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        return f"torn file {path}: {error}"
    return None if found == rows else f"file {path} holds {found} rows instead of {rows}"
