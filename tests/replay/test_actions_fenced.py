"""Commands as text: the last fenced block, or what stands between tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmill.replay.actions.action import Action
from kvmill.replay.actions.fenced import parse
from kvmill.replay.closed.environment import Environment, Library
from kvmill.replay.closed.reply import read_reply
from kvmill.traces.files import read_file
from kvmill.traces.trajectory import Trajectory

CREATE = "create a.md\nSee\n```python\nx = 1\n```\nend"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("I look.\n```\nls -a\n```", "ls -a"),
        ("```bash\nls -a\n```\n", "ls -a"),
        ("```\nls\n```\nNo, better:\n```\npwd\n```", "pwd"),
        (f"I write.\n```\n{CREATE}\n```", CREATE),
        ("<command>\nsubmit\n</command>", "submit"),
        ("<think>\n```\nrm x\n```\n</think>\n```\nls\n```", "ls"),
        ("```\nls -a", None),
        ("```\n\n```", None),
        ("Use `ls`, or ```ls``` in a line.", None),
        ("<command>ls", None),
        ("", None),
    ],
)
def test_the_command_is_in_the_last_block(text: str, command: str | None) -> None:
    expected = () if command is None else (Action(command.split()[0], command, {"command": command}),)
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [("```\nls", "neither"), ("<command>ls", "neither"), ("Solved.", "answer"), ("```\nls\n```", "calls")],
)
def test_a_block_that_is_not_closed_is_no_answer(text: str, kind: str) -> None:
    assert read_reply(text, True, "fenced").kind == kind


def test_a_flag_is_handed_in_by_a_command() -> None:
    reply = read_reply("DISCUSSION\nThere it is.\n```\nsubmit 'flag{x_y}'\n```", True, "fenced")
    assert (reply.kind, reply.answer) == ("answer", "submit 'flag{x_y}'")


def test_recorded_runs_of_swe_agent_answer_their_own_commands(shared_data: Path) -> None:
    seen = 0
    for path in sorted((shared_data / "traces" / "swe-agent").glob("*.traj")):
        runs = [item.value for item in read_file(path).items if isinstance(item.value, Trajectory)]
        for run in runs:
            if any(turn.assistant.tool_calls for turn in run.turns):
                continue
            place = Environment(run, Library([run], {"swe-agent": "fenced"}), "fenced")
            for turn in run.turns:
                for action in parse(turn.assistant.content) if turn.tools else ():
                    found = place.answer(action)
                    assert (found.how, found.text) == ("exact", turn.tools[0].content)
                    seen += 1
    assert seen > 20
