"""`traces show` prints a run, and with `--tokens` what a model's template makes of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvmill.errors import UserError
from kvmill.traces import commands, samples
from kvmill.traces.ingest import ingest
from kvmill.traces.store import Store
from kvmill.traces.tokens import tokenize

RUN = {
    "messages": [
        {"role": "user", "content": "Where is \x1b[31mred\x1b[0m?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "content": "there", "tool_call_id": "c1"},
        {"role": "assistant", "content": "There.", "reasoning_content": "the tool says so"},
    ]
}


@pytest.fixture
def show(tokenizer_for: Any) -> Any:
    def load(name: str) -> Any:
        if name not in ("chatml", "tojson", "drops-thinking"):
            raise UserError(f"no such model: {name}")
        return tokenizer_for(name)

    def run(*arguments: str, code: int = 0, loader: Any = load) -> Any:
        app = typer.Typer()
        commands.register(app)
        result = CliRunner().invoke(app, ["traces", "show", *arguments], obj=loader)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def stored(tmp_path: Any) -> str:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(RUN) + "\n")
    store = Store.open(None)
    ingest(store, [path])
    return store.query("select trajectory_id id from trajectories").to_pylist()[0]["id"]


def test_a_run_is_shown_message_by_message_and_escapes_are_spelled_out(show: Any, stored: str) -> None:
    out = show(stored).stdout
    assert out.startswith(f"{stored}: 2 turns, ")
    assert "\\x1b[31mred" in out
    assert "\x1b" not in out
    assert '→ look_up({"a":1})' in out
    assert "(thinking, 16 characters)" in out


def test_tokens_are_counted_by_turn_with_the_chosen_model_s_tokenizer(show: Any, tokenizer_for: Any) -> None:
    sample = samples.load()[0]
    found = json.loads(show(sample.id, "--tokens", "--model", "chatml", "--json").stdout)["tokens"]
    expected = tokenize(sample, tokenizer_for("chatml"))
    assert found["model"] == "chatml"
    assert found["total"] == expected.tokens == sum(segment["tokens"] for segment in found["segments"])
    assert found["drift"]["losses"] == []
    text = show(sample.id, "--tokens", "--model", "chatml").stdout
    assert f"{expected.tokens:,} tokens with chatml" in text
    assert "lost in rendering" not in text


def test_what_a_template_changes_is_said_in_words(show: Any, stored: str) -> None:
    out = show(stored, "--tokens", "--model", "tojson").stdout
    assert "calls printed otherwise than recorded: 1 of 1, 1 characters" in out
    assert "lost in rendering: arguments_reserialised:1, reasoning_dropped:16" in out


def test_without_a_loader_or_with_an_unknown_model_one_line_says_what_to_do(show: Any) -> None:
    sample = samples.load()[0].id
    assert "kvmill traces show ID --tokens" in show(sample, "--tokens", loader=None, code=2).stderr
    assert show(sample, "--tokens", "--model", "nope", code=2).stderr == "error: no such model: nope\n"
    assert show("nope", code=2).stderr.startswith("error: ")


def test_the_command_line_hands_down_a_loader_of_real_models() -> None:
    """The samples are measured elsewhere with this model: 1,579 tokens of this one."""
    from kvmill.cli import build
    from kvmill.errors import UserError as Missing
    from kvmill.replay.weights import resolve

    try:
        resolve("smollm2-135m")
    except Missing:
        pytest.skip("the small model is not pulled")
    result = CliRunner().invoke(build(), ["traces", "show", "registry-03", "--tokens", "--json"])
    assert result.exit_code == 0, result.output
    tokens = json.loads(result.stdout)["tokens"]
    assert tokens["total"] == 1579
    assert {turn["cause"] for turn in tokens["drift"]["turns"]} == {None}


def test_without_the_model_stack_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvmill.cli import build

    monkeypatch.delitem(sys.modules, "kvmill.replay.model", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = CliRunner().invoke(build(), ["traces", "show", samples.load()[0].id, "--tokens"])
    assert result.exit_code == 2
    assert result.stderr == "error: a model's tokenizer needs transformers: pip install 'kvmill[replay]'\n"
