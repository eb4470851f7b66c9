"""A `Geometry` from a Hugging Face `config.json`: a file, or the local cache's copy of a model. Never the network."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ..errors import UserError
from .geometry import Geometry
from .shapes.families import geometry_of

LONGEST_NAME = 96  # letters, the most that the hub takes in a name
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


def read_config(path: Path, name: str | None = None) -> Geometry:
    """The geometry that `path` describes, called `name` (else as the file or its folder says).

    UserError when the file is not JSON, lacks a needed key, or names a `model_type` that is not understood.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not JSON
        raise UserError(f"model configuration {path}: cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"model configuration {path}: not a JSON object")
    called = name or _one_line(str(config.get("_name_or_path") or path.parent.name or config.get("model_type")))
    return geometry_of(config, str(path), called, str(path))


def _one_line(name: str) -> str:
    """A name that a file gives itself, fit for a table."""
    line = "".join(letter if letter.isprintable() else " " for letter in name).strip()
    return line if len(line) <= LONGEST_NAME else f"{line[:LONGEST_NAME]}…"


def cached_config(model: str) -> Path | None:
    """The `config.json` of a hub id `owner/name` in the local Hugging Face cache; None when it is not there.

    The snapshot that `main` points to goes first, else the newest. HF_HUB_CACHE and HF_HOME are heeded.
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{model.replace('/', '--')}"
    main = folder / "refs" / "main"
    if main.is_file():
        found = folder / "snapshots" / main.read_text(encoding="utf-8").strip() / "config.json"
        if found.is_file():
            return found
    found = sorted(folder.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
