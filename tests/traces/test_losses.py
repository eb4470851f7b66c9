"""Every loss that a source file names is described, and nothing is described that no file names."""

from __future__ import annotations

import re
from pathlib import Path

from kvmill.traces.losses import LOSSES, RENDERING, code_of

TRACES = Path(__file__).resolve().parents[2] / "traces"
_NAMED = re.compile(
    r"loss(?:es)?\.add\(\s*f?\"(\w+)|lost\.add\(\s*f?\"(\w+)|loss(?:es)?\.append\(\s*\"(\w+)"
    r"|loss(?:es)?\[\"(\w+)\"\] \+=|lost\[\"(\w+)\"\] \+="
)


def sources() -> dict[str, str]:
    return {str(p.relative_to(TRACES)): p.read_text() for p in TRACES.rglob("*.py") if p.name != "losses.py"}


def test_every_loss_that_is_added_is_described() -> None:
    named = {name for text in sources().values() for found in _NAMED.findall(text) for name in found if name}
    assert len(named) > 20
    # A writer's own losses are described in its own table.
    assert sorted(named - set(LOSSES) - set(RENDERING)) == []


def test_every_description_is_of_a_loss_that_some_file_names() -> None:
    text = "\n".join(sources().values())
    assert sorted(name for name in {**LOSSES, **RENDERING} if f'"{name}' not in text) == []


def test_a_loss_without_its_count() -> None:
    assert (code_of("content_trimmed:3"), code_of("no_reward")) == ("content_trimmed", "no_reward")
    assert not set(LOSSES) & set(RENDERING)
