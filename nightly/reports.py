"""What a night leaves beside its rows: JSON, JUnit XML, Markdown, Parquet, and a text file for Prometheus.

Every file is replaced whole, so that nobody reads half of one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from ..console import plain
from ..errors import UserError
from .config import NightConfig
from .junit import junit
from .markdown import markdown
from .prometheus import prometheus

NAMES = {"json": "nightly.json", "junit": "nightly.xml", "markdown": "nightly.md", "parquet": "gates.parquet"}


def clear(config: NightConfig) -> None:
    """Remove the reports of an earlier night. What Prometheus reads stays: it says when the last success was.

    UserError where reports cannot be written: before a night is spent, not after it.
    """
    with _told(config.folder):
        config.folder.mkdir(parents=True, exist_ok=True)
        for name in NAMES.values():
            (config.folder / name).unlink(missing_ok=True)
        _probe(config.folder)
    if config.prometheus is not None:
        with _told(config.prometheus):
            config.prometheus.parent.mkdir(parents=True, exist_ok=True)
            _probe(config.prometheus.parent)


def write(config: NightConfig, found: Mapping[str, Any]) -> dict[str, str]:
    """Write all reports; returns their paths by kind. UserError where one cannot be written."""
    made = {
        "json": json.dumps(plain(found), indent=2, allow_nan=False).encode() + b"\n",
        "junit": junit(found),
        "markdown": markdown(found).encode(),
        "parquet": _parquet(found),
    }
    paths = {kind: config.folder / NAMES[kind] for kind in made}
    if config.prometheus is not None:
        made["prometheus"], paths["prometheus"] = prometheus(found).encode(), config.prometheus
    for kind, data in made.items():
        with _told(paths[kind]):
            paths[kind].parent.mkdir(parents=True, exist_ok=True)
            _replace(paths[kind], data)
    return {kind: str(path) for kind, path in paths.items()}


def _parquet(found: Mapping[str, Any]) -> bytes:
    """The rows as they are in table `gates` of the store."""
    import pyarrow.parquet as pq

    from ..traces.segments import to_table

    out = BytesIO()
    pq.write_table(to_table("gates", found["rows"], found["run"]), out)
    return out.getvalue()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system refuses, in one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"reports: {path} cannot be written ({error.strerror})") from None


def _probe(folder: Path) -> None:
    """OSError where no file can be made."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
