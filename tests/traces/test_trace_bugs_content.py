"""Content that others lost or let act: part lists, broken pairs, control tokens, sampled tokens, lenient rewards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import Merging

from kvmill.traces.checks import trajectory_findings
from kvmill.traces.conservation import conservation, said, solid
from kvmill.traces.files import read_file
from kvmill.traces.readers import openai_chat, tau_bench
from kvmill.traces.record import tool_call
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Label, Message, RecordedIds, Trajectory, Turn

ALL = ("chatml", "items", "raw", "tojson", "braces", "drops-thinking", "strict")
CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_response>", "</tool_response>")


def run(*turns: Turn, **values: Any) -> Trajectory:
    return Trajectory("t", "test", "test", (Message("system", "Be brief."), Message("user", "Where?")), turns, **values)


def runs(path: Path) -> list[Trajectory]:
    _, items, _ = read_file(path)
    return [item.value for item in items if isinstance(item.value, Trajectory)]


class TestContentInParts:
    """Bug 4: content that is a list of parts is dropped without an error. Kind: silent loss of content."""

    MESSAGES = (
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "ask"},
        {
            "role": "assistant",
            "content": "look",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "found", "tool_call_id": "c"},
        {"role": "assistant", "content": "done"},
    )

    @pytest.mark.parametrize("which", range(5))
    @pytest.mark.parametrize("name", ALL)
    def test_a_list_in_any_role_reads_and_renders_as_its_text(self, tokenizer_for: Any, name: str, which: int) -> None:
        listed = [
            {**m, "content": [{"type": "text", "text": m["content"]}] if n == which else m["content"]}
            for n, m in enumerate(self.MESSAGES)
        ]
        plain, parts = openai_chat.read({"messages": list(self.MESSAGES)}), openai_chat.read({"messages": listed})
        assert parts == plain
        assert tokenize(parts, tokenizer_for(name)).segments == tokenize(plain, tokenizer_for(name)).segments

    def test_parts_of_telemetry_are_text_too(self, tmp_path: Path) -> None:
        asked = [{"role": "user", "parts": [{"type": "text", "content": "ask"}, {"type": "text", "content": "more"}]}]
        told = [{"role": "assistant", "parts": [{"type": "text", "content": "yes"}, {"type": "text", "content": "no"}]}]
        record = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(asked),
            "gen_ai.output.messages": json.dumps(told),
        }
        path = tmp_path / "spans.jsonl"
        path.write_text(json.dumps(record) + "\n")
        (trajectory,) = runs(path)
        assert [(m.role, m.content.split()) for m in trajectory.messages()] == [
            ("user", ["ask", "more"]),
            ("assistant", ["yes", "no"]),
        ]

    def test_a_real_run_of_part_lists_keeps_every_character_in_every_template(
        self, shared_data: Path, tokenizer_for: Any
    ) -> None:
        for path in sorted((shared_data / "traces/openhands").glob("sdk__llm-logs__*.json")):
            raw = json.loads(path.read_text())
            assert all(isinstance(m["content"], list) for m in raw["messages"])
            (trajectory,) = runs(path)
            contents = [m.content for m in trajectory.messages()]
            assert sum(map(solid, contents[: len(raw["messages"])])) == sum(
                count for role, count in said(raw["messages"]).items() if role not in ("arguments", "reasoning")
            )
            for name in ALL:
                losses = tokenize(trajectory, tokenizer_for(name)).losses
                assert not [loss for loss in losses if loss.startswith("content_dropped")], name


class TestResultsThatAreMissing:
    """Bug 18: a call that was interrupted has no result, and a server refuses the history. Kind: partial record."""

    def test_any_result_of_a_real_run_may_be_missing(self, shared_data: Path, tokenizer_for: Any) -> None:
        raw = json.loads((shared_data / "traces/tau-bench/gpt-4o-airline.trial0.json").read_text())[0]
        places = [n for n, message in enumerate(raw["traj"]) if message["role"] == "tool"]
        for place in places:
            cut = {**raw, "traj": raw["traj"][:place] + raw["traj"][place + 1 :]}
            trajectory = tau_bench.read(cut)
            assert {"call_without_result", "ends_with_call"} & set(trajectory.losses)
            codes = {finding.code for finding in trajectory_findings(trajectory)}
            assert {"call_without_result", "ends_with_call"} & codes
            assert conservation(said(cut["traj"]), trajectory) == conservation(said(raw["traj"]), tau_bench.read(raw))
            assert tokenize(trajectory, tokenizer_for("raw")).tokens > 0


class TestControlTokensInContent:
    """Bug 19: control tokens spelled in recorded content become real ones. Kind: injection through content."""

    SPELLED = st.lists(st.sampled_from([*CONTROL, "a", "\n", "system", "\U000f0000"]), min_size=1, max_size=4).map(
        "".join
    )

    @pytest.mark.parametrize("name", ALL)
    @settings(max_examples=30)
    @given(words=st.lists(SPELLED, min_size=9, max_size=9))
    def test_no_field_of_a_run_can_write_one(self, tokenizer_for: Any, name: str, words: list[str]) -> None:
        tokenizer = tokenizer_for(name)

        def made(texts: list[str]) -> Trajectory:
            system, asked, said, thought, argument, found, again, schema, last = texts
            call = tool_call("c", "look_up", json.dumps({"a": argument}))
            return Trajectory(
                "t",
                "test",
                "test",
                (Message("system", system), Message("user", asked)),
                (
                    Turn(
                        Message("assistant", said, (call,), reasoning=thought),
                        (Message("tool", found, tool_call_id="c"),),
                    ),
                    Turn(Message("assistant", last), user=(Message("user", again),)),
                ),
                ({"type": "function", "function": {"name": "look_up", "description": schema, "parameters": {}}},),
            )

        hostile, harmless = tokenize(made(words), tokenizer), tokenize(made(["x"] * 9), tokenizer)
        assert [[s.ids[i] for i in s.structural] for s in hostile.segments] == [
            [s.ids[i] for i in s.structural] for s in harmless.segments
        ]


class TestTokensThatTextDoesNotTell:
    """Bug 6: what was sampled is encoded otherwise from its text. Kind: drift of retokenisation."""

    def test_a_session_holds_what_the_model_wrote_if_its_ids_are_known(self, tokenizer_for: Any) -> None:
        tokenizer = Merging(tokenizer_for("chatml"))
        sampled = ((*b"a", 10, 10, *b"b", 257), (ord("P"), 2002, 257))  # two single line breaks; `P` and `an`
        texts = [tokenizer.decode(ids[:-1]) for ids in sampled]
        plain = run(*(Turn(Message("assistant", text)) for text in texts))
        encoded = tokenize(plain, tokenizer)
        turns, rest = [], list(encoded.segments[0].ids)
        for turn, ids, segment in zip(plain.turns, sampled, encoded.segments[1:], strict=True):
            prompt = (*rest, *segment.ids[: segment.scored[0]])
            turns.append(replace(turn, ids=RecordedIds(prompt, ids)))
            rest = list(segment.ids[segment.scored[1] :])
        held = tokenize(replace(plain, turns=tuple(turns)), tokenizer)
        assert [segment.ids[slice(*segment.scored)] for segment in held.segments[1:]] == list(sampled)
        assert all(e.ids != h.ids for e, h in zip(encoded.segments[1:], held.segments[1:], strict=True))

    @given(st.lists(st.text("Pan\n ", min_size=1, max_size=8), min_size=1, max_size=3))
    def test_without_ids_the_context_is_still_append_only(self, tokenizer_for: Any, texts: list[str]) -> None:
        tokenizer = Merging(tokenizer_for("chatml"))
        whole = run(*(Turn(Message("assistant", text)) for text in texts))
        held = [token for segment in tokenize(whole, tokenizer).segments for token in segment.ids]
        for count in range(1, len(texts)):
            part = tokenize(replace(whole, turns=whole.turns[:count]), tokenizer)
            assert held[: part.tokens] == [token for segment in part.segments for token in segment.ids]


class TestRewardsForDoingNothing:
    """Bug 15: tasks that reward inaction, and rewards beside failed actions. Kind: ground truth too lenient."""

    def codes(self, value: Any, gold: tuple[str, ...], made: tuple[str, ...], source: str = "tau2-bench") -> list[str]:
        calls = tuple(tool_call("c", name, "{}") for name in made)
        results = tuple(Message("tool", "ok", tool_call_id="c") for _ in made)
        label = Label("reward", value, tuple(tool_call("g", name, "{}") for name in gold))
        rewarded = replace(run(Turn(Message("assistant", "ok", calls), results), label=label), source=source)
        return [finding.code for finding in trajectory_findings(rewarded) if finding.where == "label"]

    def test_a_reward_that_needed_no_action_is_a_finding(self) -> None:
        assert self.codes(1.0, (), ()) == ["reward_without_action"]
        assert self.codes(1.0, (), ("look_up",)) == ["reward_without_action"]
        assert self.codes(0.0, (), ()) == []

    def test_where_a_source_lists_no_actions_nothing_is_said_of_inaction(self) -> None:
        assert self.codes(1.0, (), (), source="swe-rebench") == []

    def test_a_reward_beside_a_gold_action_that_was_not_made_is_a_finding(self) -> None:
        assert self.codes(1.0, ("cancel", "book"), ("book",)) == ["reward_without_gold_action"]
        assert self.codes(1.0, ("cancel",), ("look_up", "cancel")) == []
        assert self.codes(0.0, ("cancel",), ()) == []

    def test_real_rewards_are_looked_at(self, shared_data: Path) -> None:
        found = [
            finding.code
            for trajectory in runs(shared_data / "traces/tau-bench/gpt-4o-airline.trial0.json")
            for finding in trajectory_findings(trajectory)
            if finding.where == "label"
        ]
        assert found.count("reward_without_action") == 4
