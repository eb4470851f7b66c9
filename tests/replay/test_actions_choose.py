"""The grammar follows from what the chat template prints, or from the source; a name nobody knows is refused."""

from __future__ import annotations

import pytest
from chatter import CHATML, Chatter

from kvmill.errors import UserError
from kvmill.replay.actions.choose import grammar_for, require_known

NAME, ARGUMENTS = "{{ c.function.name }}", "{{ c.function.arguments | tojson }}"
EACH, END = "{% for k, v in c.function.arguments.items() -%}", "{%- endfor %}"
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "{NAME}", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "qwen-xml": f"<tool_call>\n<function={NAME}>\n{EACH}"
    f"<parameter={{{{ k }}}}>\n{{{{ v }}}}\n</parameter>{END}\n</function>\n</tool_call>",
    "gemma": f'<|tool_call>call:{NAME}{{{{ "{{" }}}}{EACH}{{{{ k }}}}:<|"|>{{{{ v }}}}<|"|>{END}}}<tool_call|>',
    "none": f"[TOOL_CALLS]{NAME} {ARGUMENTS}",
}


def calling(form: str) -> Chatter:
    inside = "{% for c in m.get('tool_calls', []) %}" + CALLS[form] + "{% endfor %}"
    tokenizer = Chatter(CHATML.replace("m['content']", "m['content'] }}" + inside + "{{ ''"))
    tokenizer.renders_tools = True
    return tokenizer


@pytest.mark.parametrize("form", ["hermes", "qwen-xml", "gemma"])
def test_the_grammar_is_the_one_that_the_template_prints(form: str) -> None:
    assert grammar_for("tau-bench", calling(form), "m") == form


def test_a_template_without_calls_gets_the_fallback_and_the_samples_their_own() -> None:
    assert grammar_for("tau-bench", Chatter(), "m") == "fallback"
    assert grammar_for("samples", calling("hermes"), "m") == "samples"


def test_commands_are_text_where_runs_of_swe_agent_record_no_calls() -> None:
    assert grammar_for("swe-agent", calling("hermes"), "m", calls=False) == "fenced"
    assert grammar_for("swe-agent", calling("hermes"), "m") == "hermes"
    assert grammar_for("tau-bench", calling("hermes"), "m", calls=False) == "hermes"


def test_unknown_grammars_and_templates_say_what_is_known() -> None:
    with pytest.raises(UserError, match=r"unknown action grammar 'qwen'.*fallback, fenced, gemma, hermes, qwen-xml"):
        require_known("qwen")
    with pytest.raises(UserError, match="chat template of m prints; name one with --actions"):
        grammar_for("tau-bench", calling("none"), "m")
