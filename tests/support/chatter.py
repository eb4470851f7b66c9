"""A chat tokenizer of 97 ids for the tiny models: one id per character, two control tokens, any Jinja template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tiny import VOCABULARY

ALPHABET = "\n" + "".join(chr(c) for c in range(32, 126))
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMED = CHATML.replace("m['content']", "m['content'] | trim")
PLAIN = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


class Chatter:
    """Ids 0…94 are characters (`}` is the last), then `<|im_start|>` and `<|im_end|>`."""

    renders_tools = False

    def __init__(self, template: str = CHATML) -> None:
        self._template = ImmutableSandboxedEnvironment().from_string(template)
        self.fingerprint = template
        self.spelled = [*ALPHABET, "<|im_start|>", "<|im_end|>"]
        assert len(self.spelled) == VOCABULARY
        self.control_ids = frozenset({VOCABULARY - 2, VOCABULARY - 1})

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str, control: bool) -> list[int]:
        parts = re.split(r"(<\|im_(?:start|end)\|>)", text) if control else [text]
        return [self.spelled.index(i) for p in parts for i in ([p] if control and p[:2] == "<|" else p)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.spelled[i] for i in ids)

    def token_text(self, token_id: int) -> str:
        return self.spelled[token_id]
