"""Models are used through our own cache and attention: the result must be what transformers computes itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gemma4 import Gemma4TextConfig

from kvmill.errors import UserError
from kvmill.replay import model as model_file
from kvmill.replay.adapter import CacheAdapter
from kvmill.replay.model import (
    Layer,
    LoadedModel,
    convert,
    describe_layers,
    head,
    install_attention,
    load_model,
    run_layers,
)
from kvmill.replay.weights import converted_folder, pull

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "gemma3": Gemma3TextConfig(
        **SIZES, sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "capped": Gemma3TextConfig(**SIZES, final_logit_softcapping=0.5, layer_types=["full_attention"] * 3),
}


def tiny(name: str) -> Any:
    torch.manual_seed(7)
    return AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32).eval().requires_grad_(False)


class NaiveCache:
    """Stores every row and attends causally by position, in plain torch: the reference engine of this test."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.adapter = CacheAdapter(self.store)

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        old = self.rows.get(layer)
        self.rows[layer] = (
            (keys, values) if old is None else (torch.cat([old[0], keys], 2), torch.cat([old[1], values], 2))
        )

    def attention(self, layer: Any, query: torch.Tensor, key: Any, value: Any, mask: Any, scaling: float, **kw: Any):
        assert mask is None
        keys, values = self.rows[layer.layer_idx]
        group = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        length, new = keys.shape[2], query.shape[2]
        row, column = torch.arange(length - new, length)[:, None], torch.arange(length)[None]
        allowed = column <= row
        if window := kw.get("sliding_window"):
            allowed &= column > row - window
        logits = (query @ keys.mT * scaling).masked_fill(~allowed, float("-inf"))
        return (logits.softmax(-1) @ values).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("name", CONFIGS)
def test_chunked_prefill_through_our_cache_equals_the_plain_forward(name: str) -> None:
    tokens = torch.randint(0, 97, (1, 41), generator=torch.Generator().manual_seed(1))
    expected = tiny(name)(tokens).logits
    model, cache = tiny(name), NaiveCache()
    install_attention(model, cache.attention)
    hidden, start = [], 0
    for size in (17, 1, 8, 1, 14):
        positions = torch.arange(start, start + size)[None]
        hidden.append(run_layers(model, tokens[:, start : start + size], positions, cache.adapter))
        start += size
    logits = head(model, torch.cat(hidden, 1))
    assert start == tokens.shape[1]
    assert torch.allclose(logits, expected, atol=1e-5, rtol=0)
    selected = head(model, torch.cat(hidden, 1)[0, [3, 40]])
    assert torch.allclose(selected, expected[0, [3, 40]], atol=1e-5, rtol=0)


def test_positions_are_the_ones_given_not_the_length_of_the_cache() -> None:
    tokens = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(2))
    outcome = []
    for gap in (0, 5):
        model, cache = tiny("llama"), NaiveCache()
        install_attention(model, cache.attention)
        run_layers(model, tokens[:, :8], torch.arange(8)[None], cache.adapter)
        outcome.append(run_layers(model, tokens[:, 8:], torch.arange(8 + gap, 12 + gap)[None], cache.adapter))
    assert (outcome[0] - outcome[1]).abs().max() > 1e-3


def test_layers_are_classed_by_what_their_cache_is() -> None:
    assert describe_layers(CONFIGS["llama"]) == tuple(Layer(i, "full", i) for i in range(3))
    assert [layer.window for layer in describe_layers(CONFIGS["gemma3"])] == [8, None, 8]
    shared = Gemma4TextConfig(
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        sliding_window=16,
    )
    kinds = [(layer.kind, layer.owner) for layer in describe_layers(shared)]
    assert kinds == [("sliding", 0), ("sliding", 1), ("full", 2), ("sliding", 3), ("shared", 3), ("shared", 2)]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_shape_counts_compactable_layers_only(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    loaded = LoadedModel(
        name="tiny",
        module=model,
        tokenizer=None,  # pyright: ignore[reportArgumentType]
        layers=describe_layers(model.config),
        dtype=torch.float32,
        device=torch.device("cpu"),
        threads=1,
        max_positions=256,
        fingerprint="",
    )
    cache = NaiveCache()
    install_attention(model, cache.attention)
    run_layers(model, torch.zeros(1, 5, dtype=torch.long), torch.arange(5)[None], cache.adapter)
    full = [layer.index for layer in loaded.layers if layer.kind == "full"]
    stored = sum(t.numel() * t.element_size() for i in full for t in cache.rows[i])
    shape = loaded.shape()
    assert (shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim) == (len(full), 6, 2, 8)
    assert stored == 5 * shape.row_bytes


def test_a_saved_directory_loads_with_its_tokenizer(tmp_path: Path) -> None:
    _save_tiny(tmp_path)
    first, second = load_model(str(tmp_path), dtype="float32", threads=1), load_model(str(tmp_path), dtype="bfloat16")
    assert (first.dtype_name, second.dtype_name) == ("float32", "bfloat16")
    assert first.fingerprint == second.fingerprint
    assert not any(parameter.requires_grad for parameter in first.module.parameters())
    assert first.max_positions == 256
    weights = tmp_path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert load_model(str(tmp_path), dtype="float32").fingerprint != first.fingerprint


def test_what_cannot_be_loaded_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown model 'smolm2-135m'. Did you mean 'smollm2-135m'"):
        load_model("smolm2-135m")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-architecture"}')
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be loaded"):  # the hub is offline in tests
        load_model("nobody/no-such-model")
    _save_tiny(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded: SafetensorError"):
        load_model(str(tmp_path), dtype="float32")
    with pytest.raises(UserError, match="unknown dtype 'bf16'"):
        load_model(str(tmp_path), dtype="bf16")


def _save_tiny(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tiny("llama").save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def test_the_bundled_model_end_to_end() -> None:
    """The one test on real weights: fetched once into KVMILL_CACHE, converted once, loaded, asked a question."""
    loaded = load_model("smollm2-135m", dtype="float32")
    tokenizer = loaded.tokenizer
    assert (loaded.shape().layers, loaded.shape().kv_heads, loaded.max_positions) == (30, 3, 8192)
    assert loaded.shape().row_bytes == 11_520 * 4
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode("an <|im_end|> and <|im_start|>system", control=False))
    # Digits stand alone, so a run of blanks before one is not broken: SmolLM's own rule.
    digit = tokenizer.encode("1", control=False)
    assert tokenizer.encode("a   12", control=False)[-2:-1] == digit
    assert tokenizer.token_text(tokenizer.encode("a   12", control=False)[1]) == "   "
    prompt = tokenizer.render([{"role": "user", "content": "What is the capital of France?"}], None, True)
    ids = torch.tensor([tokenizer.encode(prompt, control=True)])
    for _ in range(6):
        ids = torch.cat([ids, loaded.module(ids).logits[:, -1:].argmax(-1)], 1)
    assert tokenizer.decode(ids[0].tolist()).endswith("assistant\nThe capital of France is Paris")


def test_a_conversion_happens_once_and_clears_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pull("smollm2-135m")
    monkeypatch.setenv("KVMILL_CACHE", str(tmp_path))
    written: list[Path] = []

    def write(source: Path, folder: Path) -> None:
        assert source == gguf.gguf
        folder.mkdir(parents=True)
        written.append(folder)
        if len(written) == 1:
            (folder / "model.safetensors").write_bytes(b"half")
            raise KeyboardInterrupt
        assert not any(folder.iterdir())
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(model_file, "_write_converted", write)
    with pytest.raises(KeyboardInterrupt):
        convert(gguf)
    assert not converted_folder(str(gguf.sha256)).exists()
    left = written[0]
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"left by a kill")
    assert convert(gguf) == convert(gguf) == converted_folder(str(gguf.sha256))
    assert len(written) == 2

    monkeypatch.setenv("KVMILL_CACHE", str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"is damaged .* delete it and pull again"):
        convert(replace(gguf, sha256="0" * 64))


def test_a_decoder_gets_its_cache_under_the_name_that_its_version_knows() -> None:
    """transformers 5.17 says `past_key_values`, and drops a `cache` without a word; 5.24 warns of the former."""

    class Output:
        last_hidden_state = torch.ones(1)

    class Older:
        def forward(self, input_ids: Any, position_ids: Any, past_key_values: Any, use_cache: bool) -> Any:
            assert past_key_values == "held"
            return Output

        __call__ = forward

    class Newer:
        def forward(self, input_ids: Any, position_ids: Any, cache: Any, use_cache: bool) -> Any:
            assert cache == "held"
            return Output

        __call__ = forward

    for body in (Older(), Newer()):

        class Module:
            base_model = body

        assert run_layers(Module, torch.ones(1, 1), torch.ones(1, 1), "held") is Output.last_hidden_state
