"""The judge of tables: precision, recall and F1 by row and by item, as WideSearch defines them.

Rows are matched by the values of the unique columns. An item of a matched row counts if its column's metric says so,
the unique columns' own items always; a row counts if all of its items do. Precision divides by what the answer has,
recall by what the gold table has; items are rows × required columns. From WideSearch (arXiv 2508.07999;
ByteDance-Seed/WideSearch, src/evaluation/evaluation.py and metric_utils.py). There a model also maps other spellings
of columns and keys to the gold ones and judges some columns: here both are compared as they are, which can only lower
a score, and the verdict says how many columns that concerned.

The label's value is an object: `table` (Markdown or CSV text, or a list of objects), `unique_columns`, and optionally
`required` (all columns of the table if not given) and `eval_pipeline` (per column `preprocess`, `metric`, `criterion`).
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError, unknown
from ...traces.trajectory import Label
from .cells import METRICS, PREPROCESS
from .verdict import Context, Verdict, undecided

Row = dict[str, str]
_KNOWN = ("table", "unique_columns", "required", "eval_pipeline")
_FENCED = re.compile(r"```(?:markdown|csv|md)?[ \t]*\n(.*?)```", re.DOTALL)
_RULE = frozenset("|-: \t")
BY_A_MODEL = "llm_judge"


@dataclass(frozen=True, slots=True)
class Shares:
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, right: float, said: int, gold: int) -> Shares:
        """From what is right, what was said and what there is. Shares of nothing are 0."""
        precision, recall = right / said if said else 0.0, right / gold if gold else 0.0
        both = precision + recall
        return cls(precision, recall, 2 * precision * recall / both if both else 0.0)


def item_f1(label: Label, answer: str, context: Context) -> Verdict:
    """The score is F1 by item; correct means that every item of every row is right, and no row is too many.

    `parts`: precision, recall and F1 by row and by item, and `as_text`: columns compared as text that a model would
    judge upstream. UserError for a label with other keys, columns or metrics than there are.
    """
    asked = _asked(label)
    if asked is None:
        return undecided("the label has no table")
    gold = _unique(_preprocessed(asked.rows, asked), asked.unique)
    found = read_table(answer)
    if not found:
        return _nothing("no table in the answer")
    columns = set(found[0])
    if columns != set(asked.required):
        return _nothing(f"columns {', '.join(sorted(columns))}, wanted {', '.join(sorted(asked.required))}")
    said = _unique(_preprocessed(found, asked), asked.unique)
    rows, items = 0, 0
    for key, row in said.items():
        if key in gold:
            right = [column in asked.unique or asked.right(column, row, gold[key]) for column in asked.required]
            rows, items = rows + all(right), items + sum(right)
    width = len(asked.required)
    by_row = Shares.of(rows, len(said), len(gold))
    by_item = Shares.of(items, len(said) * width, len(gold) * width)
    reason = f"{rows} of {len(gold)} rows right, {len(said)} given" + (
        f"; {asked.as_text} columns compared as text that a model would judge" if asked.as_text else ""
    )
    return Verdict(by_row.f1 == 1.0, by_item.f1, reason, {**_parts(by_row, by_item), "as_text": asked.as_text})


def read_table(text: str) -> list[Row]:
    """The first table of an answer: fenced or not, Markdown or CSV. Column names small and without blanks.

    A row with more or fewer cells than there are columns is filled or cut.
    """
    for part in [*_FENCED.findall(text), text]:
        lines = _markdown(part)
        if len(lines) > 1:
            return _rows([[cell.strip() for cell in _cells(line)] for line in lines])
    for part in _FENCED.findall(text):
        try:
            found = [row for row in csv.reader(io.StringIO(part.strip())) if row]
        except csv.Error:  # no CSV, and so no table
            continue
        if len(found) > 1 and len(found[0]) > 1:
            return _rows([[cell.strip() for cell in row] for row in found])
    return []


def _markdown(text: str) -> list[str]:
    """The lines with bars that follow one another, from the first head on that has a rule below; without the rules."""
    lines = [line.strip() for line in text.splitlines()]
    ruled = (n for n, line in enumerate(lines[1:]) if "-" in line and set(line) <= _RULE and "|" in lines[n])
    start = next(ruled, next((n for n, line in enumerate(lines) if line.startswith("|")), len(lines)))
    table = itertools.takewhile(lambda line: "|" in line, lines[start:])
    return [line for line in table if not set(line) <= _RULE]


def _cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.removeprefix("|").removesuffix("|"))


def _rows(cells: Sequence[Sequence[str]]) -> list[Row]:
    names = [_column(name) for name in cells[0]]
    width = len(names)
    return [dict(zip(names, [*row[:width], *[""] * (width - len(row))], strict=True)) for row in cells[1:]]


def _column(name: str) -> str:
    return "".join(name.casefold().split())


@dataclass(frozen=True, slots=True)
class _Asked:
    rows: list[Row]
    required: tuple[str, ...]
    unique: tuple[str, ...]
    pipeline: Mapping[str, Mapping[str, Any]]
    as_text: int

    def right(self, column: str, row: Row, gold: Row) -> bool:
        """Whether the least of the column's metrics is met."""
        how = self.pipeline.get(column, {})
        names = [name for name in how.get("metric", ()) if name != BY_A_MODEL] or ["exact_match"]
        return all(METRICS[name](row[column], gold[column], how.get("criterion")) for name in names)


def _asked(label: Label) -> _Asked | None:
    value = label.value
    if not isinstance(value, Mapping) or not value.get("table"):
        return None
    if wrong := sorted(set(value) - set(_KNOWN)):
        raise unknown("key", wrong[0], _KNOWN, "a table's label")
    table, unique, pipeline = value["table"], value.get("unique_columns"), value.get("eval_pipeline") or {}
    steps = pipeline.values() if isinstance(pipeline, Mapping) else [None]
    if (
        not isinstance(table, (str, list, tuple))
        or not all(isinstance(names, (list, tuple)) for names in (unique, value.get("required") or ()))
        or not all(isinstance(how, Mapping) for how in steps)
    ):
        raise UserError(
            "a table's label needs table (text or a list of objects), unique_columns (a list), and if given "
            "required (a list) and eval_pipeline (an object per column)"
        )
    rows = read_table(table if "|" in table else f"```csv\n{table}\n```") if isinstance(table, str) else _objects(table)
    if not rows:
        return None
    required = tuple(map(_column, value.get("required") or rows[0]))
    unique = tuple(map(_column, unique or ()))
    pipeline = {_column(name): how for name, how in pipeline.items()}
    for name in (*required, *unique, *pipeline):
        if name not in rows[0]:
            raise unknown("column", name, rows[0], "a table's label")
    if not unique or not set(unique) <= set(required):
        raise UserError("a table's label needs unique_columns, all of them among the required ones")
    for how in pipeline.values():
        for name in how.get("preprocess", ()):
            if name not in PREPROCESS:
                raise unknown("preprocess", name, PREPROCESS, "a table's label")
        for name in how.get("metric", ()):
            if name not in (*METRICS, BY_A_MODEL):
                raise unknown("metric", name, (*METRICS, BY_A_MODEL), "a table's label")
    as_text = sum(BY_A_MODEL in how.get("metric", ()) for name, how in pipeline.items() if name not in unique)
    return _Asked([{name: row[name] for name in required} for row in rows], required, unique, pipeline, as_text)


def _objects(table: Any) -> list[Row]:
    return [
        {_column(str(name)): "" if cell is None else str(cell).strip() for name, cell in row.items()}
        for row in table
        if isinstance(row, Mapping)
    ]


def _preprocessed(rows: Sequence[Row], asked: _Asked) -> list[Row]:
    steps = {name: [PREPROCESS[step] for step in how.get("preprocess", ())] for name, how in asked.pipeline.items()}
    out = []
    for row in rows:
        new = dict(row)
        for name in asked.required:
            for step in steps.get(name, ()):
                new[name] = step(new[name])
        out.append(new)
    return out


def _unique(rows: Sequence[Row], unique: Sequence[str]) -> dict[tuple[str, ...], Row]:
    """The first row of each key."""
    out: dict[tuple[str, ...], Row] = {}
    for row in rows:
        out.setdefault(tuple(row[name] for name in unique), row)
    return out


def _nothing(reason: str) -> Verdict:
    none = Shares.of(0, 0, 0)
    return Verdict(False, 0.0, reason, _parts(none, none))


def _parts(by_row: Shares, by_item: Shares) -> dict[str, float]:
    named = {"row": by_row, "item": by_item}
    return {f"{name}_{what}": getattr(by, what) for name, by in named.items() for what in ("precision", "recall", "f1")}
