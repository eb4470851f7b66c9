"""TOML of users: read, or refused in one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.toml import read_toml


def test_tables_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("x = 1\n[y]\nz = 'ü'\n", encoding="utf-8")
    assert read_toml(path, "workload") == {"x": 1, "y": {"z": "ü"}}


@pytest.mark.parametrize("content", [b"x = ", b"\xff\xfe", None])
def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"^workload .*a\.toml: ") as refused:
        read_toml(path, "workload")
    assert "\n" not in str(refused.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory"):
        read_toml(tmp_path, "workload")
