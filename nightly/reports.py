"""What a night leaves beside its rows: JSON, JUnit XML, Markdown, Parquet, and a text file for Prometheus.

Every file is replaced whole, so that nobody reads half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from ..console import plain
from .config import NightConfig
from .junit import junit
from .markdown import markdown
from .prometheus import prometheus

NAMES = {"json": "nightly.json", "junit": "nightly.xml", "markdown": "nightly.md", "parquet": "gates.parquet"}


def clear(config: NightConfig) -> None:
    """Remove the reports of an earlier night. What Prometheus reads stays: it says when the last success was."""
    for name in NAMES.values():
        (config.folder / name).unlink(missing_ok=True)


def write(config: NightConfig, found: Mapping[str, Any]) -> dict[str, str]:
    """Write all reports; returns their paths by kind."""
    config.folder.mkdir(parents=True, exist_ok=True)
    made = {
        "json": json.dumps(plain(found), indent=2, allow_nan=False).encode() + b"\n",
        "junit": junit(found),
        "markdown": markdown(found).encode(),
        "parquet": _parquet(found),
    }
    paths = {kind: config.folder / NAMES[kind] for kind in made}
    if config.prometheus is not None:
        made["prometheus"], paths["prometheus"] = prometheus(found).encode(), config.prometheus
        config.prometheus.parent.mkdir(parents=True, exist_ok=True)
    for kind, data in made.items():
        _replace(paths[kind], data)
    return {kind: str(path) for kind, path in paths.items()}


def _parquet(found: Mapping[str, Any]) -> bytes:
    """The rows as they are in table `gates` of the store."""
    import pyarrow.parquet as pq

    from ..traces.segments import to_table

    out = BytesIO()
    pq.write_table(to_table("gates", found["rows"], found["run"]), out)
    return out.getvalue()


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
