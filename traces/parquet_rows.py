"""Rows of a Parquet file as objects of column → JSON value, read in small batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import InputError
from . import values
from .reading import Bad, Record
from .unpack import MAX_RATIO, PLAIN_BYTES

_INT64_DIGITS = 18
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 4096
_TEXT_ROWS = 64  # a value may be long although its column chunk is small: a dictionary holds it once
_MAX_CHUNK_BYTES = 256 << 20  # of one column of one row group, of which pages are held


def records(file: BinaryIO, where: str) -> Iterator[Record | Bad]:
    """The rows, numbered from 1. Times become ISO text, NaN null, decimals numbers, or text if they are whole and long;
    bytes that are no text are refused.

    InputError if it is no Parquet file that can be read.
    """
    place = 0
    try:
        parquet = pq.ParquetFile(pa.PythonFile(file, mode="r"), buffer_size=1 << 20, pre_buffer=False)
        schema = parquet.schema_arrow
        _bounded(parquet.metadata, where)
        targets = {field.name: _json_type(field.type, field.name, where) for field in schema}
        if len(targets) < len(schema):
            raise InputError(f"{where}: two columns have the same name")
        for batch in parquet.iter_batches(batch_size=_rows(parquet.metadata, schema), use_threads=False):
            columns = [_plain(batch.column(name), target, name, where) for name, target in targets.items()]
            table = pa.Table.from_arrays(columns, names=list(targets))
            for row in table.to_pylist(maps_as_pydicts="lossy"):
                place += 1
                yield _record(place, row)
    except (pa.ArrowException, OSError) as error:
        if place == 0:
            raise InputError(f"{where}: no Parquet file that can be read ({_short(error)})") from None
        yield Bad(place + 1, f"damaged Parquet data, the rest was not read ({_short(error)})", "")


def _record(place: int, row: dict[str, Any]) -> Record | Bad:
    """NaN inside lists and objects becomes null as well, and is noted: it stands in what was said, not in a column."""
    try:
        loaded = values.safe(row, "")
    except ValueError as error:
        return Bad(place, str(error), "")
    return Record(place, loaded.value, nulled=loaded.nulled)


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _bounded(metadata: pq.FileMetaData, where: str) -> None:
    packed = unpacked = 0
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            packed += chunk.total_compressed_size
            unpacked += chunk.total_uncompressed_size
    if unpacked > max(PLAIN_BYTES, MAX_RATIO * packed):
        raise InputError(f"{where} unpacks to far more than its size ({unpacked:,} bytes from {packed:,})")


def _rows(metadata: pq.FileMetaData, schema: pa.Schema) -> int:
    groups = range(metadata.num_row_groups)
    size = sum(metadata.row_group(group).total_byte_size for group in groups) / max(1, metadata.num_rows)
    most = _BATCH_ROWS if all(pa.types.is_primitive(field.type) for field in schema) else _TEXT_ROWS
    return int(max(1, min(most, _BATCH_BYTES / max(1.0, size))))


def _json_type(kind: pa.DataType, name: str, where: str) -> pa.DataType:
    """The nearest type whose Python values are JSON values."""
    if pa.types.is_dictionary(kind):
        return _json_type(kind.value_type, name, where)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_decimal(kind) and kind.scale == 0:  # whole numbers, of which some stores write 38 digits
        return pa.int64() if kind.precision <= _INT64_DIGITS else pa.large_string()
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _json_type(f.type, name, where)) for f in fields])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _json_type(kind.item_type, name, where))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.large_list(_json_type(kind.value_type, name, where))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):  # writers that do not mark text as such
        return pa.large_string()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return kind
    if pa.types.is_floating(kind):
        return pa.float64()
    raise InputError(f"{where}: column {name!r} holds {kind}, which is no text, number or list of them")


def _plain(column: pa.Array, target: pa.DataType, name: str, where: str) -> pa.Array:
    try:
        out = column if column.type == target else column.cast(target)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        raise InputError(f"{where}: column {name!r} holds bytes that are no text; leave it out") from None
    if pa.types.is_timestamp(column.type):
        return pc.call_function("replace_substring", [out], pc.ReplaceSubstringOptions(" ", "T", max_replacements=1))
    if pa.types.is_float64(target):
        nan = pc.call_function("is_nan", [out])
        return pc.call_function("if_else", [nan, pa.scalar(None, target), out])
    return out
