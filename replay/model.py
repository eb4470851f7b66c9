"""Loading models, and the only file that touches transformers.

The engine owns cache, masks and positions. A model is used through `run_layers` (decoder without head) and `head`
(selected rows only), with one attention function installed under the name "kvmill" and a `CacheAdapter` that hands
each layer's new keys and values to the engine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from ..console import note
from ..errors import UserError
from .device import choose_device, choose_dtype, choose_threads
from .policies.base import KvShape
from .tokenizer import ChatTokenizer
from .weights import Weights, converted_folder, locked, resolve, sha256_of

ATTENTION = "kvmill"
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's cache. `full` layers are compacted; the other kinds are left alone.

    `owner` is the layer whose keys and values it reads: itself, unless the kind is `shared`. `window` is the number
    of last tokens (its own included) that a sliding layer attends to.
    """

    index: int
    kind: Literal["full", "sliding", "linear", "shared"]
    owner: int
    window: int | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for replay: weights frozen, in eval mode, on its device.

    `fingerprint` names the weights (the GGUF's SHA-256, the hub's commit, or a hash over the directory's files);
    `threads` is what torch was set to when it was loaded.
    """

    name: str
    module: Any
    tokenizer: ChatTokenizer
    layers: tuple[Layer, ...]
    dtype: torch.dtype
    device: torch.device
    threads: int
    max_positions: int
    fingerprint: str

    @property
    def dtype_name(self) -> str:
        """`float32`, `bfloat16`, …"""
        return str(self.dtype).removeprefix("torch.")

    def shape(self) -> KvShape:
        """Geometry of the compactable layers. UserError if there are none, or if they differ in shape."""
        found = {_layer_shape(self.module, layer.index) for layer in self.layers if layer.kind == "full"}
        if len(found) != 1:
            raise UserError(
                f"model {self.name}: its full-attention layers are {sorted(found) or 'absent'}; need one shape"
            )
        q_heads, kv_heads, head_dim = found.pop()
        full = {layer.index for layer in self.layers if layer.kind == "full"}
        readers = sum(layer.owner in full for layer in self.layers)
        return KvShape(len(full), kv_heads, q_heads, head_dim, self.dtype.itemsize, readers)

    def layer_counts(self) -> dict[str, int]:
        """How many layers of each kind it has; only those of kind `full` are compacted."""
        kinds = [layer.kind for layer in self.layers]
        return {kind: kinds.count(kind) for kind in ("full", "sliding", "linear", "shared") if kind in kinds}


def load_model(
    name: str, *, device: str = "auto", dtype: str = "auto", threads: int | None = None, spread: bool = False
) -> LoadedModel:
    """Load an alias, a GGUF file, a model directory or a hub id; sets torch's thread count. Never runs remote code.

    `spread` lays the layers over all visible GPUs, most of them beyond the first, which holds the caches. UserError
    when there is no such model, when it cannot be fetched or loaded, or when it has layers that replay cannot handle.
    """
    place, count = choose_device(device), choose_threads(threads)
    kind = choose_dtype(dtype, place)
    torch.set_num_threads(count)
    weights = resolve(name)
    reference = str(convert(weights)) if weights.gguf else str(weights.reference)
    from safetensors import SafetensorError

    with _Quiet():
        try:
            laid = {"device_map": "balanced_low_0"} if spread else {}
            module: Any = AutoModelForCausalLM.from_pretrained(reference, dtype=kind, trust_remote_code=False, **laid)
            tokenizer = AutoTokenizer.from_pretrained(reference, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
            raise UserError(f"model {name} cannot be loaded: {_first_line(error)}") from error
    try:
        module = module.eval().requires_grad_(False)
        module = module if spread else module.to(place)
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(f"model {name} does not fit on {place}: {_first_line(error)}") from error
    return LoadedModel(
        name=name,
        module=module,
        tokenizer=ChatTokenizer(tokenizer, name),
        layers=describe_layers(module.config.get_text_config()),
        dtype=kind,
        device=place,
        threads=count,
        max_positions=int(module.config.get_text_config().max_position_embeddings),
        fingerprint=weights.sha256 or _fingerprint(reference, module.config),
    )


def load_tokenizer(name: str) -> ChatTokenizer:
    """A model's tokenizer without its weights, though a GGUF is converted first. UserError as `load_model`."""
    weights = resolve(name)
    reference = str(convert(weights)) if weights.gguf else str(weights.reference)
    with _Quiet():
        try:
            return ChatTokenizer(AutoTokenizer.from_pretrained(reference, trust_remote_code=False), name)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise UserError(f"the tokenizer of {name} cannot be loaded: {_first_line(error)}") from error


def convert(weights: Weights) -> Path:
    """The safetensors folder made from a GGUF, in float32: made once, under a temporary name, then renamed.

    transformers dequantises a GGUF in several seconds on every load; this folder loads at once.
    """
    assert weights.gguf is not None
    assert weights.sha256 is not None
    folder = converted_folder(weights.sha256)
    if (folder / "config.json").is_file():
        return folder
    from safetensors import SafetensorError

    with locked(folder):
        if (folder / "config.json").is_file():
            return folder
        if sha256_of(weights.gguf) != weights.sha256:
            raise UserError(f"{weights.gguf} is damaged (SHA-256 is not {weights.sha256}); delete it and pull again")
        note(f"converting {weights.gguf.name} into {folder}, once")
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # what a killed conversion left
        try:
            _write_converted(weights.gguf, partial)
            partial.replace(folder)
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write {partial} ({error}): free space or set KVMILL_CACHE") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def install_attention(module: Any, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make `function` the attention of every layer of `module`, and let the model build no mask.

    It is called as `function(layer, query, key, value, attention_mask, scaling=…, **kw)` with query (batch, heads,
    new tokens, head dim) and the new keys and values, rotated; `layer.layer_idx` tells which. It returns
    (output, None), output (batch, new tokens, heads, head dim). `kw` carries what some models add: `sliding_window`,
    `softcap`, `s_aux` (sinks).
    """
    use_attention(function)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    module.set_attn_implementation(ATTENTION)
    if module.config.get_text_config()._attn_implementation != ATTENTION:
        raise UserError(f"{type(module).__name__} does not let its attention be replaced; replay cannot use it")


def use_attention(function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Call `function` from now on: models share the one name under which attention is installed."""
    AttentionInterface.register(ATTENTION, function)


def rope_frequencies(module: Any) -> torch.Tensor | None:
    """The inverse frequencies (F,) by which full-attention layers rotate keys, where the model tells them."""
    for part in module.base_model.modules():
        for name in ("full_attention_inv_freq", "inv_freq"):
            if isinstance(found := getattr(part, name, None), torch.Tensor):
                return found.float()
    return None


def run_layers(module: Any, input_ids: torch.Tensor, position_ids: torch.Tensor, cache: Any) -> torch.Tensor:
    """Hidden states after the last norm, (batch, tokens, hidden), of `input_ids` at `position_ids` (both 2-D)."""
    body = module.base_model
    given = {cache_name(type(body)): cache}
    return body(input_ids=input_ids, position_ids=position_ids, use_cache=True, **given).last_hidden_state


def head(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits (…, vocabulary) of selected rows of hidden states (…, hidden), scaled and capped as the model does."""
    config = module.config.get_text_config()
    logits = module.get_output_embeddings()(hidden)
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if factor := getattr(config, "logit_scale", None):
        logits = logits * factor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits


def end_ids(module: Any) -> frozenset[int]:
    """The ids that end a text, by the model's own configuration."""
    found: set[int] = set()
    for config in (module.config.get_text_config(), getattr(module, "generation_config", None)):
        named = getattr(config, "eos_token_id", None)
        found.update([named] if isinstance(named, int) else named or [])
    return frozenset(found)


def describe_layers(config: Any) -> tuple[Layer, ...]:
    """The kind of every decoder layer, from the model's (text) configuration."""
    count = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    names = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * count
    own = count - (getattr(config, "num_kv_shared_layers", 0) or 0)
    layers: list[Layer] = []
    for index, name in enumerate(names[:count]):
        sliding = name == "sliding_attention"
        size = window if sliding else None
        if index >= own:
            owner = max(i for i in range(own) if names[i] == name)
            layers.append(Layer(index, "shared", owner, size))
        elif name in ("full_attention", "attention"):
            layers.append(Layer(index, "full", index))
        elif sliding:
            layers.append(Layer(index, "sliding", index, size))
        elif name in ("linear_attention", "mamba", "conv", "recurrent"):
            layers.append(Layer(index, "linear", index))
        else:
            raise UserError(f"layer {index} of this model is of kind {name!r}, which replay does not know")
    return tuple(layers)


@functools.cache
def cache_name(kind: type) -> str:
    """What the decoder calls its cache: `past_key_values` in older transformers, which drop an unknown `cache`."""
    known = inspect.signature(kind.forward).parameters  # type: ignore[attr-defined]
    return "past_key_values" if "past_key_values" in known else "cache"


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def _layer_shape(module: Any, index: int) -> tuple[int, int, int]:
    """(query heads, KV heads, head dim) of a layer's attention, from its projections where it has them."""
    for part in module.base_model.modules():
        found = getattr(part, "layer_idx", None) == index and isinstance(getattr(part, "k_proj", None), nn.Linear)
        if found and (head_dim := getattr(part, "head_dim", None)):
            return part.o_proj.in_features // head_dim, part.k_proj.out_features // head_dim, head_dim
    config = module.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return config.num_attention_heads, kv_heads, head_dim


def _write_converted(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF to float32 and write weights, configuration and tokenizer into `folder`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    source, file = str(gguf.parent), gguf.name
    with _Quiet():
        try:
            module = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise UserError(f"{gguf} cannot be converted: {_first_line(error)}") from error
    _repair_pre_tokenizer(tokenizer, gguf)
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for key, tensor in module.state_dict().items():  # tied weights share their storage: the first name keeps it
        tensors.setdefault(tensor.data_ptr(), (key, tensor.contiguous()))
    save_file(dict(tensors.values()), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    settings = {k: v for k, v in module.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    (folder / "config.json").write_text(json.dumps({**settings, "dtype": "float32"}, indent=2, default=str))


def _repair_pre_tokenizer(tokenizer: Any, gguf: Path) -> None:
    """SmolLM splits every digit off before the byte-level step; transformers' GGUF reader forgets that."""
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(str(gguf)).fields.get("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


def _fingerprint(reference: str, config: Any) -> str:
    """The hub's commit, or a hash over the configuration and the size, head and tail of each weight file."""
    if commit := getattr(config, "_commit_hash", None):
        return str(commit)
    digest = hashlib.sha256((Path(reference) / "config.json").read_bytes())
    for path in sorted(Path(reference).glob("*.safetensors")) + sorted(Path(reference).glob("*.bin")):
        with path.open("rb") as file:
            digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(_SAMPLE_BYTES))
            file.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__


class _Quiet:
    """transformers without warnings and progress bars (some of which know no switch); restored afterwards."""

    def __enter__(self) -> None:
        self.level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.stderr = contextlib.redirect_stderr(io.StringIO())
        self.stderr.__enter__()

    def __exit__(self, *_: object) -> None:
        self.stderr.__exit__(None, None, None)
        transformers.logging.set_verbosity(self.level)
        transformers.logging.enable_progress_bar()
