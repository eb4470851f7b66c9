"""Entity flags: what the rules find, that they are linear, and that the right tokens carry the flag."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.traces.entities import entity_spans, flag_tokens, places
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Message, Trajectory, Turn


def found(text: str) -> list[str]:
    return [text[begin:end] for begin, end in entity_spans(text)]


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("it took 75 ms, about 5 % of 3.5 GB", ["75 ms", "5 %", "3.5 GB"]),
        ("due 2024-01-05 at 12:30 in v1.2.3", ["2024-01-05", "12:30", "v1.2.3"]),
        ("it costs $1,234.50 or -3 now", ["$1,234.50", "-3"]),
        ("call get_user then fetchAll and os.path.join", ["get_user", "fetchAll", "os.path.join"]),
        ("build GPU4X_7, 0xDEADBEEF or deadbeef", ["GPU4X_7", "0xDEADBEEF", "deadbeef"]),
        ("key 550e8400-e29b-41d4-a716-446655440000 works", ["550e8400-e29b-41d4-a716-446655440000"]),
        ("open /usr/local/bin, ~/notes.txt or src/main.py", ["/usr/local/bin", "~/notes.txt", "src/main.py"]),
        (r"open C:\Users\mia then", [r"C:\Users\mia"]),
        ("see https://x.org/a?b=1, or write to me@x.org today", ["https://x.org/a?b=1", "me@x.org"]),
        ("run with --max-loss please", ["--max-loss"]),
        ("say \"open sesame\" or 'close it' or `ls` or “now”", ['"open sesame"', "'close it'", "`ls`", "“now”"]),
        ("don't and the dogs' and rock 'n' roll", ["'n'"]),
        ("the API of Zürich", ["API", "Zürich"]),
        ("INFO Simon got an ERROR from HTTP", ["Simon", "HTTP"]),
        ("yesterday Ada Lovelace met Anglo-Saxon poets", ["Ada", "Lovelace", "Anglo-Saxon"]),
        ("Ada Lovelace met nobody", ["Ada", "Lovelace"]),
        ("Result: Dublin is far", ["Dublin"]),
        ("Nobody came. Everyone left! Why?\nBecause", []),
        ("she left. Then The end, and I knew", []),
        ("and/or, e.g. this, i.e. that", []),
        ("plain words of a sentence, well-known ones", []),
        ("", []),
    ],
)
def test_rules_find_what_names_something(text: str, entities: list[str]) -> None:
    assert found(text) == entities


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="aA1 ._/:-@\"'“”\n\\$%", max_size=60))
def test_spans_are_inside_ascending_disjoint_and_never_blank(text: str) -> None:
    spans = entity_spans(text)
    assert all(0 <= begin < end <= len(text) for begin, end in spans)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    assert all(text[begin:end].strip() for begin, end in spans)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="aA1 ._/:-@\"'“”\n\\$%", max_size=40), st.text(alphabet="xyz ", max_size=20))
def test_text_without_marks_before_a_line_changes_nothing_after_it(text: str, plain: str) -> None:
    shift = len(plain) + 2
    assert entity_spans(plain + "\n\n" + text) == [(begin + shift, end + shift) for begin, end in entity_spans(text)]


HOSTILE = {
    **{unit: unit for unit in ("a", "_", "1", " ", "\n", '"', "'", "/", "-", ".", "a.", "1,", "a@", "a+", "a-")},
    **{unit: unit for unit in ("/a", "-a", "a://", '"a ', "“a", "'a ", "Aa ", "1 ", "\\a", "a:\\", "$1", "--a-")},
    "address": "a@" + "b" * 50,
    "flag": "--" + "a-" * 50,
    "blanks": " " * 500 + "x",
}


def test_time_is_linear_in_hostile_text() -> None:
    """No ratio of two timings here: a quadratic rule would need minutes for one of these."""
    begin = time.process_time()
    for unit in HOSTILE.values():
        entity_spans(unit * (100_000 // len(unit)))
    entity_spans("a@" + "b" * 100_000)
    entity_spans("C:" + "\\a" * 50_000)
    assert time.process_time() - begin < 20


def overlapping(text: str, pieces: list[str]) -> tuple[int, ...]:
    spans, at, out = entity_spans(text), 0, []
    for offset, piece in enumerate(pieces):
        if any(b < at + len(piece) and at < e for b, e in spans):
            out.append(offset)
        at += len(piece)
    return tuple(out)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet="aA1 ._'\"é", min_size=1, max_size=5), max_size=15))
def test_whole_pieces_are_flagged_by_their_characters(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert places(text, pieces) == [
        (len("".join(pieces[:i])), len("".join(pieces[: i + 1]))) for i in range(len(pieces))
    ]
    assert flag_tokens(places(text, pieces), entity_spans(text)) == overlapping(text, pieces)


def test_parts_of_a_character_share_it_and_lost_blanks_do_not_shift_the_rest() -> None:
    text = "the café 42 🦙 in Bern ok"
    pieces = ["the", "caf", "\ufffd", "\ufffd", "42", "\ufffd", "\ufffd", "\ufffd", "in", "Ber", "n", " ok"]
    where = places(text, pieces)
    assert where[2] == where[3] == (7, 9)
    assert [pieces[i] for i in flag_tokens(where, entity_spans(text))] == ["42", "Ber", "n"]
    assert places("abc", ["\ufffd", "", "\ufffd"]) == [(0, 3)] * 3
    assert places("abc", ["nothing", "like", "it"]) == [(0, 3)] * 3
    assert places("", []) == []


def test_a_token_trajectory_carries_the_flags_of_content_and_none_of_the_template(tokenizer_for: Any) -> None:
    tokenizer = tokenizer_for("chatml")
    turn = Turn(Message("assistant", "I asked Mia about order_17."), (Message("tool", "<|im_end|> is 42 €"),))
    tokens = tokenize(Trajectory("t", "t", "t", (Message("user", "Where is Bob?"),), (turn,)), tokenizer)
    said = [tokenizer.decode([segment.ids[i] for i in segment.entities]) for segment in tokens.segments]
    assert said[0].endswith("Bob")
    assert said[1] == "Miaorder_17"
    assert said[2] == "im_end42"  # spelled by content, so it is text
    for segment in tokens.segments:
        assert not set(segment.entities) & set(segment.structural)
        assert list(segment.entities) == sorted(set(segment.entities))
