"""The files beside a trace file, made of values, for tests of readers."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvmill.traces.reading import Bad, Format, Item, Record


@dataclass
class Beside:
    """A `reading.Source` whose files are lists of records or texts, by name."""

    files: dict[str, Any] = field(default_factory=dict)
    name: str = "run.json"
    columns: dict[str, str] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)

    def names(self, pattern: str) -> list[str]:
        parts = pattern.split("/")
        return sorted(
            name
            for name in self.files
            if len(name.split("/")) == len(parts) and all(map(fnmatch.fnmatchcase, name.split("/"), parts))
        )

    def records(self, name: str) -> Iterator[Record | Bad]:
        if name in self.files:
            self.opened.append(name)
            yield from found(self.files[name])

    def text(self, name: str) -> str | None:
        if name in self.files:
            self.opened.append(name)
        return self.files.get(name)


def found(values: list[Any]) -> list[Record | Bad]:
    """Values as records in order; a `Bad` stays one."""
    return [value if isinstance(value, Bad) else Record(n, value) for n, value in enumerate(values, 1)]


def items(reader: Format, values: list[Any], source: Beside | None = None) -> list[Item]:
    """What a format that gathers makes of values as records."""
    assert reader.gather is not None
    return list(reader.gather(iter(found(values)), source or Beside()))


def jsonl(path: Path) -> list[Any]:
    """The values of a file of JSON lines; a line that is none is a `Bad`."""
    values: list[Any] = []
    for n, line in enumerate(path.read_text().splitlines(), 1):
        try:
            values.append(json.loads(line))
        except ValueError:
            values.append(Bad(n, "no valid JSON", line[:100]))
    return values
