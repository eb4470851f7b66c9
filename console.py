"""What every command shares: answers on stdout, progress on stderr, errors as one line with an exit code."""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, ParamSpec, TypeVar

from .errors import Incomplete, KvmillError, NoAnswer, RegressionFound, UserError

Params = ParamSpec("Params")
Result = TypeVar("Result")
LOG_EVERY_S = 30.0
PROGRAMS_EVERY_S = 1.0
_LABELS = {NoAnswer: "no answer", Incomplete: "incomplete", RegressionFound: "regression"}
# Of the machine, not of the program: the user can fix them, and a traceback would not help.
_OF_THE_MACHINE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}


def plain(value: Any) -> Any:
    """A value made of JSON types. NaN and infinities become null: not measured, never a number."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    item = getattr(value, "item", None)  # numpy scalars
    return plain(item()) if callable(item) else str(value)


def answer(value: Any, as_json: bool, text: Callable[[], str]) -> None:
    """Print the answer on stdout: one JSON object, or the text made by `text`."""
    out = json.dumps(plain(value), indent=2, allow_nan=False) if as_json else printable(text())
    sys.stdout.write(out.rstrip("\n") + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """Text for a terminal: recorded escape sequences and other control characters are spelled out, not obeyed."""
    return "\n".join(line if line.isprintable() else _spelled_out(line) for line in text.split("\n"))


def _spelled_out(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)


def note(message: str) -> None:
    """A line on stderr."""
    sys.stderr.write(printable(message) + "\n")
    sys.stderr.flush()


def begun(message: str) -> None:
    """A line on stderr about what takes long and has begun. Silent when `KVMILL_QUIET` is set, as `Progress` is."""
    if not os.environ.get("KVMILL_QUIET"):
        note(message)


def lenient_streams() -> None:
    """What the encoding of a terminal or a pipe lacks is spelled out (`\\u2264`) rather than an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def guarded(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Turn the expected failures of a command into one line on stderr and its exit code.

    `NoAnswer` and `Incomplete` are raised after the answer was printed; their message still goes to stderr.
    """

    @functools.wraps(function)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        import typer

        try:
            return function(*args, **kwargs)
        except KvmillError as error:
            label = _LABELS.get(type(error), "error")
            note(f"{label}: {' '.join(str(error).split())}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            note("interrupted; what was finished is kept")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in _OF_THE_MACHINE:
                raise
            note(f"error: {error.filename or 'a file'}: {error.strerror}; check permissions and free space")
            raise typer.Exit(UserError.exit_code) from None

    return run


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Rows as aligned plain text: `columns` maps keys to headings. Never wraps or cuts a cell."""
    body = [[_cell(row.get(key)) for key in columns] for row in rows]
    head = list(columns.values())
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    numeric = [all(_is_number(line[i]) for line in body) if body else False for i in range(len(head))]

    def line(cells: list[str]) -> str:
        return "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, body)])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def _is_number(text: str) -> bool:
    return text[:1] in "–-+.0123456789" and not any(c.isalpha() for c in text)


def duration(seconds: float) -> str:
    """`75` → `1m15s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def size(count: float) -> str:
    """`540_000_000` bytes → `540 MB`: three digits, in powers of 1,000."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    unit = units[0]
    return f"{count:.0f} {unit}" if count >= 99.5 or unit == "bytes" else f"{count:.3g} {unit}"


class Progress:
    """Progress on stderr: a live line on a terminal, else one line per 30 s. Silent when `KVMILL_QUIET` is set.

    `total` 0 means that nobody knows yet: what is done is counted, and no time to go is guessed. With
    `KVMILL_PROGRESS=json` every line is one object for a program to read, at most one a second:
    `{"progress": {"label", "done", "total" (null: nobody knows), "unit", "detail", "eta_s"}}`.
    """

    def __init__(self, label: str, total: int, unit: str = "") -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = 0
        self.started = self.last = time.monotonic()
        self.quiet = bool(os.environ.get("KVMILL_QUIET"))
        self.for_programs = os.environ.get("KVMILL_PROGRESS") == "json"
        self.live = sys.stderr.isatty() and not self.for_programs
        if self.for_programs and not self.quiet:
            self._write_object("")
        elif self.live and not self.quiet:
            self._write_line("")

    def step(self, amount: int = 1, detail: str = "") -> None:
        """`amount` more is done."""
        self.done += amount
        now = time.monotonic()
        finished = 0 < self.total <= self.done
        every_s = PROGRAMS_EVERY_S if self.for_programs else LOG_EVERY_S
        if self.quiet or (not self.live and now - self.last < every_s and not finished):
            return
        self.last = now
        if self.for_programs:
            self._write_object(detail)
            return
        self._write_line(detail)
        if self.live and finished:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _write_line(self, detail: str) -> None:
        spent = time.monotonic() - self.started
        text = f"{self.label} {self.done}{f'/{self.total}' if self.total else ''} {self.unit}, {duration(spent)} spent"
        if 0 < self.done < self.total:
            text += f", {duration(max(0.0, spent / self.done * (self.total - self.done)))} to go"
        text += f", {printable(detail)}" if detail else ""
        sys.stderr.write(f"\r\x1b[2K{text}" if self.live else text + "\n")
        sys.stderr.flush()

    def _write_object(self, detail: str) -> None:
        spent = time.monotonic() - self.started
        known = self.total and self.done
        reached = {
            "label": self.label,
            "done": self.done,
            "total": self.total or None,
            "unit": self.unit,
            "detail": detail,
            "eta_s": round(max(0.0, spent / self.done * (self.total - self.done)), 1) if known else None,
        }
        sys.stderr.write(json.dumps({"progress": reached}) + "\n")
        sys.stderr.flush()
