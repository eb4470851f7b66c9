"""TOML files that users write: read whole, or refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from .errors import UserError


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The tables of a file. UserError, naming `what` and the file, where it cannot be read or is no TOML."""
    where = Path(path).expanduser()
    try:
        return tomllib.loads(where.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{what} {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {where.name}: not TOML: {error}") from None
