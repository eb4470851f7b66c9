"""Tokens become HTML in which the trace's own text is text and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard.said import plain
from kvmill.dashboard.tokens_html import key_html, tokens_html, visible


class Read(HTMLParser):
    """The tags and the text of what a browser would read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def token(position: int, text: str, share: float = 0.5, goal: str | None = None, kind: str = "tool") -> dict[str, Any]:
    return {"position": position, "kind": kind, "text": text, "share": share, "goal": goal}


@given(st.lists(st.tuples(st.text(max_size=30), st.sampled_from([0.0, 0.5, 1.0])), max_size=8))
def test_no_text_of_a_trace_becomes_markup(found: list[tuple[str, float]]):
    made = Read(tokens_html([token(at, text, share) for at, (text, share) in enumerate(found)]))
    assert {tag for tag, _ in made.tags} <= {"div", "span"}
    assert all(set(attributes) <= {"style", "title"} for _, attributes in made.tags)
    said = "".join(visible(text) for text, _ in found)
    assert made.text.removeprefix("[tool]" if found else "") == said


def test_harmful_text_is_escaped():
    made = tokens_html([token(0, '<img src=x onerror="alert(1)">'), token(1, "</div><script>")])
    assert "<img" not in made
    assert "<script" not in made
    assert "&lt;img" in made


def test_text_that_turns_the_writing_around_is_spelled_out():
    assert visible("a\u202eb\u200bc\x07\n\t") == "a\\u202eb\\u200bc\\x07\n\t"


def test_neighbours_that_look_the_same_are_one_span_and_say_where_they_stand():
    made = Read(tokens_html([token(3, "a", 1.0), token(4, "b", 1.0), token(5, "c", 0.0)]))
    spans = [attributes for tag, attributes in made.tags if tag == "span"]
    assert [span["title"] for span in spans] == [
        "positions 3 to 4: kept by 100% of layer-heads",
        "position 5: kept by 0% of layer-heads",
    ]
    assert "background-color" in str(spans[0]["style"])
    assert "line-through" in str(spans[1]["style"])


def test_goal_tokens_are_underlined_and_named():
    made = Read(tokens_html([token(0, "x", 0.5, "answer")]))
    span = next(attributes for tag, attributes in made.tags if tag == "span")
    assert "border-bottom" in str(span["style"])
    assert str(span["title"]).endswith("; spells a right answer")


def test_segments_are_told_apart():
    assert Read(tokens_html([token(0, "a", kind="assistant"), token(1, "b")])).text == "[assistant]a[tool]b"
    assert "goal token" in Read(key_html()).text


@given(st.text(max_size=40))
def test_plain_words_hold_no_markdown(text: str):
    made = plain(text)
    assert "\n" not in made
    bare = made.replace("\\\\", "")
    for sign in "`*_[]()<>#!|~$":
        assert bare.count(sign) == bare.count(f"\\{sign}")
