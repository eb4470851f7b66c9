"""A tiny random Llama and random token trajectories for the engine's tests. No download."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kvmill.replay.model import LoadedModel, describe_layers
from kvmill.traces.tokens import ProbeTokens, TokenSegment, TokenTrajectory

VOCABULARY = 97
PROMPTS = {"repeat": (7, 8, 9), "recall": (4, 5), "recall_on": (6, 5, 4), "recall_reply": (3, 2)}


def save_tiny(folder: Path) -> Path:
    """A tiny random Llama with a byte-level ChatML tokenizer, saved as a Hugging Face directory."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    control = ["<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *control])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(control)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(_config(len(vocabulary))).save_pretrained(folder)
    return folder


def _config(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.15,
    )


class Letters:
    """A stand-in for the tokenizer where only ids matter."""

    fingerprint = "letters"

    def token_text(self, token_id: int) -> str:
        return f"<{token_id}>"


def tiny_model(dtype: torch.dtype = torch.float32, seed: int = 0) -> LoadedModel:
    """Three layers, six query heads over two KV heads, float32, sharp enough attention to tell policies apart."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = _config(VOCABULARY)
    module = LlamaForCausalLM(config).eval().requires_grad_(False).to(dtype)
    tokenizer = Letters()
    return LoadedModel(
        "tiny",
        module,
        tokenizer,
        describe_layers(config),
        dtype,
        torch.device("cpu"),
        1,
        4096,
        "seed-0",  # type: ignore[arg-type]
    )


def segment(kind: str, turn: int, ids: list[int]) -> TokenSegment:
    """Opening and closing tokens structural, the last two closing; assistants score all but a 3-token header."""
    n = len(ids)
    return TokenSegment(
        kind=kind,  # type: ignore[arg-type]
        turn=turn,
        ids=tuple(ids),
        structural=tuple(sorted({0, max(0, n - 2)})),
        scored=(min(3, n - 1), n - 1) if kind == "assistant" else (0, 0),
        closing=min(2, n),
        entities=tuple(range(5, n - 3, 7)),
        frame=tuple(sorted({*range(min(3, n)), *range(max(0, n - 2), n)})) if kind == "tool" else (),
    )


def trajectory(seed: int = 1, turns: int = 6, users: bool = True, long_tool: int = 300) -> TokenTrajectory:
    """Turns of 20-odd assistant tokens and 60-odd tool tokens, one long, one without a tool, some user messages."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    out = [segment("prefix", 0, ids(30))]
    for turn in range(turns):
        if users and turn in (2, 4):
            out.append(segment("user", turn, ids(17)))
        out.append(segment("assistant", turn, ids(20 + turn)))
        if turn != 4:
            out.append(segment("tool", turn, ids(long_tool if turn == 3 else 60 + turn)))
    return TokenTrajectory(f"tiny-{seed}", "tiny", "test", tuple(out), prompts=PROMPTS)


def probe(seed: int = 5) -> ProbeTokens:
    """Three candidates of one, two and three tokens."""
    draw = random.Random(seed)
    return ProbeTokens(
        stem=tuple(draw.randrange(VOCABULARY) for _ in range(9)), candidates=((1,), (2, 3), (4, 5, 6)), answer=1
    )
