"""Every row of the log of reported bugs is claimed by a test, or is an engine's fault and listed as such."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = set(range(1, 31))
ENGINE_FAULTS = {7, 25, 28, 30}
_CLAIM = re.compile(r"\b[Bb]ugs? (\d{1,2})(?:(?:, | and )(\d{1,2}))*")


def claimed() -> dict[int, set[str]]:
    """Row → the test files that name it, as `# bug N` beside a test or `Bug N:` at the beginning of a class."""
    found: dict[int, set[str]] = {}
    for path in HERE.rglob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        for match in _CLAIM.finditer(path.read_text()):
            for number in re.findall(r"\d+", match.group()):
                found.setdefault(int(number), set()).add(path.name)
    return found


def test_every_row_that_can_happen_here_is_claimed() -> None:
    assert sorted(ROWS - ENGINE_FAULTS - set(claimed())) == []


def test_no_row_is_claimed_that_there_is_not_or_that_is_an_engines() -> None:
    assert set(claimed()) <= ROWS - ENGINE_FAULTS


def test_faults_of_engines_are_listed_for_users() -> None:
    page = (HERE.parents[1] / "docs" / "formats.md").read_text()
    section = page.partition("## Faults of engines")[2]
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)} == ENGINE_FAULTS
