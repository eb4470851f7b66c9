"""Words from elsewhere mean nothing to Markdown, but commands that messages name are shown as code."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard.said import plain

SIGNS = st.text("*_[](<>)#$:\\ab!", min_size=1, max_size=12)


def test_a_command_in_backticks_is_code_and_all_else_is_text():
    assert plain("run `kvmill store check`, then *go*") == r"run `kvmill store check`, then \*go\*"


def test_a_lone_backtick_opens_nothing():
    assert plain("a ` b") == r"a \` b"
    assert plain("``a``") == r"\`\`a\`\`"


@given(st.lists(SIGNS, min_size=1))
def test_outside_of_code_every_sign_has_its_stroke(texts: list[str]):
    said = plain(" `x` ".join(texts))
    assert said.count("`x`") == len(texts) - 1
    bare = re.sub(r"\\[^ab ]", "", said.replace("`x`", ""))
    assert set(bare) <= set("ab ")
