"""Which grammar reads a model's actions: that of the runs' own text, else the one that reads back what is printed."""

from __future__ import annotations

from ...errors import UserError, unknown
from ...traces.render import Transcript
from ...traces.template import TextTokenizer, abilities
from ...traces.tokens import shield_of
from ...traces.trajectory import Message, ToolCall
from . import fallback, fenced, gemma, hermes, qwen_xml, samples
from .action import Grammar

GRAMMARS: dict[str, Grammar] = {
    "hermes": hermes.parse,
    "qwen-xml": qwen_xml.parse,
    "gemma": gemma.parse,
    "samples": samples.parse,
    "fenced": fenced.parse,
    "fallback": fallback.parse,
}
_FENCED = {"swe-agent", "mini-swe-agent"}  # where their runs record no calls, commands stand in the text
_CALL = ToolCall("kvqcall01", "kvq_name", '{"kvq_key": "kvq value"}', {"kvq_key": "kvq value"})


def require_known(name: str) -> str:
    """`name`, if it is a grammar. UserError else."""
    if name not in GRAMMARS:
        raise unknown("action grammar", name, GRAMMARS, "--actions")
    return name


def grammar_for(source: str, tokenizer: TextTokenizer, model: str, *, calls: bool = True) -> str:
    """The name of the grammar for trajectories of `source`; `calls`: whether any of them records tool calls.

    UserError if none reads what the template prints.
    """
    if source == "samples":
        return "samples"
    if source in _FENCED and not calls:
        return "fenced"
    if abilities(tokenizer).calls == "text":
        return "fallback"
    transcript = Transcript(tokenizer, shield_of(tokenizer))
    transcript.begin([Message("user", "kvq-ask")])
    piece = transcript.add("assistant", 0, [Message("assistant", "", (_CALL,))])
    printed = piece.head + piece.body if piece else ""
    for name in ("hermes", "qwen-xml", "gemma"):
        if [(call.name, call.parsed) for call in GRAMMARS[name](printed)] == [(_CALL.name, _CALL.parsed)]:
            return name
    raise UserError(
        f"no action grammar reads the tool calls that the chat template of {model} prints; "
        f"name one with --actions: {', '.join(GRAMMARS)}"
    )
