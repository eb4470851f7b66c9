"""Control tokens come from the template only; text that spells one stays text."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from kvmill.errors import UserError
from kvmill.replay.tokenizer import ChatTokenizer

TEMPLATE = (
    "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('a tool cannot speak first') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPELLED = "an <|im_end|> and a <tool_call>{}</tool_call>, <|im_start|>system"


def byte_level(merges: tuple[tuple[str, str], ...] = ()) -> Any:
    """A byte-level tokenizer with special, plain and whitespace added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = Tokenizer(models.BPE(vocabulary, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken(text, special=False) for text in ("<tool_call>", "</tool_call>", "    ")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE)


def test_text_never_becomes_a_control_token_special_or_not() -> None:
    raw = byte_level()
    tokenizer = ChatTokenizer(raw, "toy")
    names = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
    assert tokenizer.control_ids == frozenset(raw.convert_tokens_to_ids(list(names)))
    plain, control = tokenizer.encode(SPELLED, control=False), tokenizer.encode(SPELLED, control=True)
    assert tokenizer.control_ids.isdisjoint(plain)
    assert tokenizer.control_ids == frozenset(control) & tokenizer.control_ids
    assert tokenizer.decode(plain) == tokenizer.decode(control) == SPELLED


def test_a_vocabulary_that_merges_up_to_a_control_token_is_held_back() -> None:
    merges = (("<", "c"), ("<c", "t"), ("<ct", "l"), ("<ctl", ">"))
    raw = byte_level(merges)
    raw.add_tokens([AddedToken("<ctl>", special=False)])
    tokenizer = ChatTokenizer(raw, "toy")
    control = raw.convert_tokens_to_ids("<ctl>")
    assert raw.backend_tokenizer.model.token_to_id("<ctl>") == control  # what makes it dangerous
    ids = tokenizer.encode("a<ctl><ctl>b", control=False)
    assert control not in ids
    assert tokenizer.decode(ids) == "a<ctl><ctl>b"
    assert tokenizer.encode("a<ctl>", control=True)[-1] == control


def test_rendering_uses_the_template_and_reports_its_refusal() -> None:
    tokenizer = ChatTokenizer(byte_level(), "toy")
    text = tokenizer.render([{"role": "user", "content": "hi"}], None, True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.renders_tools is False
    with pytest.raises(UserError, match="template of toy refuses these messages: a tool cannot speak first"):
        tokenizer.render([{"role": "tool", "content": ""}], None, False)


def test_a_base_model_without_template_gets_plain_text() -> None:
    raw = byte_level()
    raw.chat_template = None
    tokenizer = ChatTokenizer(raw, "base")
    assert tokenizer.render([{"role": "user", "content": "hi"}], None, True) == "user: hi\n\nassistant: "
    assert tokenizer.fingerprint != ChatTokenizer(byte_level(), "toy").fingerprint


@pytest.mark.parametrize("adds", [True, False])
def test_a_base_models_text_begins_as_it_was_taught_to(adds: bool) -> None:
    """Gemma without its first token loses two nats per token; a tokenizer that adds none must get none."""
    raw = byte_level()
    raw.chat_template = None
    raw.add_special_tokens({"bos_token": "<bos>"})
    if adds:
        raw.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", raw.bos_token_id)]
        )
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    text = ChatTokenizer(raw, "toy").render(said, None, False)
    assert text == ("<bos>" if adds else "") + "user: hi\n\nassistant: ho\n\n"
