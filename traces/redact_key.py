"""The key of a store's stand-ins: made once, kept beside the data, readable by its owner alone.

With it the same value gets the same stand-in in every ingest of one store, so that duplicates are still found. Copy the
file to another store to have the same stand-ins there; delete it when nobody must be able to confirm a guess any more.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

KEY_FILE = "redaction.key"


def fresh_key() -> bytes:
    """A key that nobody can guess."""
    return secrets.token_hex(32).encode()


def redaction_key(folder: Path) -> bytes:
    """The key of the store in `folder`, made on first use."""
    path = folder / KEY_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{KEY_FILE}.", dir=folder)  # 0o600, and a name of this thread alone
        fresh = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(fresh_key())
            os.link(fresh, path)  # whoever comes first decides, and nobody reads half a key
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_bytes().strip()
