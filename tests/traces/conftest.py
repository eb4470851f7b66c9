"""A small tokenizer for tests: one id per byte, one per control token, and a real chat template in Jinja."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_response>", "</tool_response>")

CHATML = """
{%- for message in messages %}
{%- if loop.first and message.role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Tools and calls in the style of many models: HOW is how the arguments are printed.
TOOLS = """
{%- if tools %}{{ '<|im_start|>system\\nTools: ' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{ '\\n' + call.function.name + ': ' }}HOW{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
ITEMS = TOOLS.replace(
    "HOW",
    "{% for key, value in call.function.arguments | items %}{{ '<' + key + '=' + value | string + '>' }}{% endfor %}",
)
RAW = TOOLS.replace(
    "HOW",
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}",
)
TOJSON = TOOLS.replace("HOW", "{{ call.function.arguments | tojson }}")
BRACES = TOOLS.replace(
    "HOW",
    "{{ '{' }}{% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}"
    "{% for key, value in call.function.arguments | items %}{{ key + ':' + value | string }}{% endfor %}{% endif %}"
    "{{ '}' }}",
)

# Thinking is printed for what follows the last user message, and dropped from everything before it.
DROPS_THINKING = """
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.index0 > ns.last and message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# No system role, no tool role, content trimmed, roles must alternate.
STRICT = """
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('system role not supported') }}{% endif %}
{%- if message.role in ('user', 'assistant') %}
{%- if not loop.first and messages[loop.index0 - 1].role == message.role %}
{{- raise_exception('roles must alternate') }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "items": ITEMS,
    "raw": RAW,
    "tojson": TOJSON,
    "braces": BRACES,
    "drops-thinking": DROPS_THINKING,
    "strict": STRICT,
}


class FakeTokenizer:
    """Ids 0–255 are bytes, 256 and up the control tokens."""

    def __init__(self, template: str) -> None:
        def refuse(message: str) -> str:
            raise ValueError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = refuse
        self._template = environment.from_string(template)
        self.renders_tools = "tools" in template
        self.fingerprint = str(hash(template))
        self.control_ids = frozenset(range(256, 256 + len(CONTROL)))
        self.rendered = 0

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        self.rendered += 1
        return self._template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str, control: bool) -> list[int]:
        if not control:
            return list(text.encode())
        parts = re.split("(" + "|".join(map(re.escape, CONTROL)) + ")", text)
        ids: list[int] = []
        for part in parts:
            ids += [256 + CONTROL.index(part)] if part in CONTROL else part.encode()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(bytes([i]) if i < 256 else CONTROL[i - 256].encode() for i in ids).decode()

    def token_text(self, token_id: int) -> str:
        return CONTROL[token_id - 256] if token_id >= 256 else chr(token_id)


@pytest.fixture(scope="session")
def tokenizer_for() -> Callable[[str], FakeTokenizer]:
    """A fake tokenizer with one of TEMPLATES, by name."""
    return lambda name: FakeTokenizer(TEMPLATES[name])


@pytest.fixture(scope="session")
def tokenizer_with() -> Callable[[str], FakeTokenizer]:
    """A fake tokenizer with a template of the test's own."""
    return FakeTokenizer


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """The texts of TEMPLATES, to make others from."""
    return TEMPLATES


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection while a test takes the time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
