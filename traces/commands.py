"""`kvmill traces …`: read recordings into the store, look at them, check them, delete them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import answer, guarded, table
from ..errors import InputError, UserError
from ..options import JsonOption, StoreOption
from .commands_export import export
from .commands_show import show

if TYPE_CHECKING:
    from .ingest import IngestReport

FormatOption = Annotated[str, typer.Option("--format", help="A name from `kvmill traces formats`, or auto.")]
PathsArgument = Annotated[
    list[str], typer.Argument(metavar="PATH", help="Files, folders, patterns, URIs such as s3://…, or - for a pipe.")
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="FIELD=COLUMN,…",
        help="What the columns of a table are, e.g. arrival_s=TIMESTAMP,input_tokens=prompt,output_tokens=generated.",
    ),
]
_NOT_READ = 20


def register(app: typer.Typer) -> None:
    """Add the `traces` commands."""
    traces = typer.Typer(no_args_is_help=True, help="Recorded agent runs and request logs: read, list, show, check.")
    for command in (ingest, list_, show, check, formats, export, delete):
        traces.command(command.__name__.rstrip("_"))(command)
    app.add_typer(traces, name="traces")


@guarded
def ingest(
    paths: PathsArgument,
    format: FormatOption = "auto",
    columns: ColumnsOption = None,
    redact: Annotated[
        bool, typer.Option("--redact/--no-redact", help="Replace personal data and secrets by stand-ins.")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if any record was refused.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read recordings into the store. Their format is found by looking at them; doing it twice changes nothing.

    What was interrupted goes on with the same command.
    """
    from . import ingest as ingesting
    from .store import Store

    report = ingesting.ingest(Store.open(store), paths, format=format, redact=redact, columns=_columns(columns))
    answer(report, as_json, lambda: _ingested(report))
    ingesting.require_accepted(report, strict)


def _columns(given: str | None) -> dict[str, str] | None:
    if given is None:
        return None
    pairs = [part.partition("=") for part in given.split(",")]
    wrong = next(("".join(pair) for pair in pairs if not (pair[0] and pair[2])), None)
    if wrong is not None:
        raise UserError(f"--columns {given}: {wrong!r} is not FIELD=COLUMN")
    return {field.strip(): column for field, _, column in pairs}


def _ingested(report: IngestReport) -> str:
    logs = {file.log is not None for file in report.files if file.accepted or file.duplicates}
    what = "records" if len(logs) != 1 else "requests" if True in logs else "trajectories"
    lines = [
        f"{what}: {report.accepted} accepted, {report.rejected} rejected, {report.duplicates} in the store already"
    ]
    if report.chained:
        lines.append(f"{report.chained} records of single calls are part of a longer one")
    lines += _counted(
        {
            "losses": report.losses,
            "redacted": report.redacted,
            "found": report.findings,
            "rejected because": report.reasons,
        }
    )
    errors = [file.error.partition(". Known formats:")[0] for file in report.files if file.error]
    lines += [f"not read: {_one_line(error)}" for error in errors[:_NOT_READ]]
    if len(errors) > _NOT_READ:
        lines.append(f"not read: {len(errors) - _NOT_READ} files more")
    lines += _passed_over(report.hidden_files, report.links_not_followed, [file.part_of for file in report.files])
    for file in report.files:
        lines += _log(file.path, file.log)
    if report.reject_file:
        more = f" and {report.rejects_left_out} more" if report.rejects_left_out else ""
        lines.append(f"rejected records: {report.reject_file}{more}")
    return "\n".join([*lines, f"run: {report.run}"])


def _one_line(text: str) -> str:
    """Names of files may hold line breaks: none of them begins a line of the answer."""
    return text.replace("\n", "\\n")


def _counted(titles: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{title}: " + ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))
        for title, counts in titles.items()
        if counts
    ]


def _passed_over(hidden: int, links: Sequence[str], part_of: Sequence[str | None]) -> list[str]:
    read_with = sum(path is not None for path in part_of)
    lines = [f"{read_with} files are part of another one and were read with it"] if read_with else []
    lines += [f"{hidden} hidden files and folders were skipped"] if hidden else []
    return lines + [f"not followed: {_one_line(link)} leads out of the folder, or nowhere" for link in links]


def _log(path: str, log: dict[str, Any] | None) -> list[str]:
    from .request_checks import summary_text

    return [] if log is None else [f"{_one_line(path)}:", *(f"  {line}" for line in summary_text(log))]


@guarded
def list_(
    source: Annotated[str | None, typer.Option(help="Only of this source, e.g. tau-bench.")] = None,
    family: Annotated[str | None, typer.Option(help="Only of this family.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to list.")] = 50,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the recorded runs in the store, and the request logs."""
    from .store import Store

    where = "where (?::varchar is null or source = ?) and (?::varchar is null or family = ?)"
    opened = Store.open(store)
    runs = opened.query(
        "select trajectory_id id, any_value(source) source, any_value(family) family, any_value(turns) turns, "
        "any_value(characters) characters, any_value(tool_calls) tool_calls, any_value(probes) probes, "
        "any_value(label_scorer) label, any_value(array_to_string(losses, ', ')) losses "
        f"from trajectories {where} group by 1 order by 1",
        [source, source, family, family],
    ).to_pylist()
    logs = opened.query(
        "select run_id run, source, count(*) requests, max(arrival_s) - min(arrival_s) span_s, "
        "sum(input_tokens)::bigint input_tokens, sum(output_tokens)::bigint output_tokens "
        "from requests where ?::varchar is null or source = ? group by 1, 2 order by 1",
        [source, source],
    ).to_pylist()
    result = {"total": len(runs), "trajectories": runs[:limit], "request_logs": logs}
    answer(result, as_json, lambda: _listed(result))


def _listed(result: dict[str, Any]) -> str:
    runs, logs = result["trajectories"], result["request_logs"]
    if not runs and not logs:
        return "nothing in the store yet: `kvmill traces ingest PATH`"
    parts = []
    if runs:
        columns = ("id", "source", "family", "turns", "characters", "tool_calls", "probes", "label", "losses")
        parts.append(table(runs, {name: name for name in columns}))
    if result["total"] > len(runs):
        parts.append(f"… and {result['total'] - len(runs)} more (--limit)")
    if logs:
        columns = ("run", "source", "requests", "span_s", "input_tokens", "output_tokens")
        parts.append(table(logs, {name: name for name in columns}))
    return "\n".join(parts)


@guarded
def check(
    paths: PathsArgument,
    format: FormatOption = "auto",
    columns: ColumnsOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if any record would be refused.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read recordings without storing anything. Says what would be refused, lost, or is odd."""
    from .check_files import check_files

    result = check_files(paths, format, _columns(columns))
    answer(result, as_json, lambda: _checked(result))
    failed = [file for file in result["files"] if file["error"] or not (file["records"] or file["part_of"])]
    if failed:
        raise InputError(failed[0]["error"] or f"{failed[0]['path']}: no record could be accepted")
    if strict and result["rejected"]:
        raise InputError(f"{result['rejected']} records would be refused (--strict)")


def _checked(result: dict[str, Any]) -> str:
    lines = [f"{result['records']} records are fine to read, {result['rejected']} would be rejected"]
    files = [file for file in result["files"] if not file["part_of"]]
    for file in files:
        lines.append(f"{file['path']}: {file['error'] or file['format']}")
        lines += [f"  {line}" for line in _counted({title: file[title] for title in ("losses", "findings")})]
        lines += [f"  {example}" for example in file["examples"]]
        if file["left_out"]:
            places = ", ".join(f"{text['path']} ({text['characters']:,} characters)" for text in file["left_out"])
            lines.append(f"  long texts that are in no run: {places}")
        lines += _log("  its requests", file["log"])
    passed = _passed_over(result["hidden_files"], result["links_not_followed"], [f["part_of"] for f in result["files"]])
    return "\n".join([*lines, *passed])


@guarded
def formats(as_json: JsonOption = False) -> None:
    """List the trace formats. Unverified: no file of another project was ever read with it here."""
    from .formats import FORMATS

    rows = [{"name": f.name, "kind": f.kind, "verified": f.verified, "title": f.title} for f in FORMATS.values()]
    told = [row | {"tried": "verified" if row["verified"] else "unverified"} for row in rows]
    heads = {"name": "format", "kind": "holds", "tried": "real files", "title": "what it is"}
    answer({"formats": rows}, as_json, lambda: table(told, heads))


@guarded
def delete(
    id: Annotated[str, typer.Argument(metavar="ID", help="A trajectory's id, or the id of an ingest run.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a recorded run, or all of one ingest. With what replays kept of its words."""
    from .delete import delete as delete_from
    from .store import Store

    result = delete_from(Store.open(store), id)
    answer(result, as_json, lambda: f"deleted {result['trajectories']} trajectories, {result['requests']} requests")
