"""A store's key is made once, is nobody else's to read, and survives two processes that make it at once."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvmill.traces.redact_key import KEY_FILE, redaction_key


def test_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    key = redaction_key(folder)
    assert len(key) == 64
    assert redaction_key(folder) == key
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert [file.name for file in folder.iterdir()] == [KEY_FILE]
    assert redaction_key(tmp_path / "other") != key


def test_all_who_come_at_once_get_one_key(tmp_path: Path) -> None:
    for attempt in range(50):  # a race shows itself rarely
        folder = tmp_path / str(attempt)
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(redaction_key, [folder] * 16))) == 1
        assert [file.name for file in folder.iterdir()] == [KEY_FILE]
