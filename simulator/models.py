"""From the name of a model to its geometry."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import UserError, unknown
from .catalogue import CATALOGUE
from .geometry import Geometry
from .hf_config import read_config


def find_geometry(name: str) -> Geometry:
    """The geometry of a catalogue name, or of a `config.json` (a file, or a folder that holds one).

    UserError on an unknown name or an architecture that is not understood.
    """
    key = re.sub(r"-(instruct|it|base|chat)$", "", name.strip().lower().rsplit("/", 1)[-1])
    path = Path(name).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return read_config(path / "config.json")
    if path.is_file():
        return read_config(path)
    if key in CATALOGUE:
        return CATALOGUE[key]
    if name.endswith(".json"):
        raise UserError(f"model configuration {name}: no such file; give a config.json or a catalogue name")
    raise unknown("model geometry", name, CATALOGUE)
