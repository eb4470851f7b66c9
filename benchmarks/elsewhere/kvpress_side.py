"""The other side of `kvmill bench peers`: what kvpress keeps. No part of the package kvmill.

Runs as `python kvpress_side.py REQUEST FOLDER` in an environment that holds kvpress and not kvmill. REQUEST is a JSON
file {model, threads, keeps, policies, prompts: [ids]}. For every prompt and policy FOLDER gets `POLICY-NUMBER.npz`:
`scores` (layers, heads, n) float32 as the press computed them, and per keep, at index i, `kept_i` bool of the same
shape: what the press's own code keeps. kvzip is asked twice, see `reconstructed`. One line of output per file.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from kvpress import ExpectedAttentionPress, KeyDiffPress, KnormPress, KVzipPress, SnapKVPress

PRESSES: dict[str, Callable[[], Any]] = {
    "snapkv": lambda: SnapKVPress(window_size=64, kernel_size=5),
    "expected_attention": ExpectedAttentionPress,
    "keydiff": KeyDiffPress,
    "knorm": KnormPress,
}
Arrays = dict[str, Any]


def count_of(keep: Decimal, total: int) -> int:
    """⌊keep·total⌋, at least one."""
    return max(1, math.floor(keep * total))


def scored(model: Any, press: Any, ids: list[int], keeps: list[Decimal]) -> Arrays:
    """One prefill under a press that scores keys. All keeps come from it: the press selects after attention is done."""
    scores: list[Any] = []
    kept: list[list[Any]] = [[] for _ in keeps]
    score, compress = press.score, press.compress

    def select(module: Any, hidden: Any, keys: Any, values: Any, attentions: Any, kwargs: Any) -> Any:
        found = score(module, hidden, keys, values, attentions, kwargs)
        scores.append(found[0].clone())
        press.score = lambda *_: found
        # Row numbers in the place of keys: what the press gathers tells which rows it keeps.
        numbers = torch.arange(keys.shape[2])[None, None, :, None].expand(keys.shape)
        for keep, masks in zip(keeps, kept, strict=True):
            # The press keeps ⌊n·(1 − ratio)⌋: aim at the middle between two counts.
            press.compression_ratio = 1 - (count_of(keep, len(ids)) + 0.5) / len(ids)
            rows, _ = compress(module, hidden, numbers, numbers, attentions, kwargs)
            masks.append(torch.zeros(keys.shape[1:3], dtype=torch.bool).scatter(1, rows[0, :, :, 0], True))
        return keys, values

    press.compress = select
    with torch.no_grad(), press(model):
        model(input_ids=torch.tensor([ids]), past_key_values=transformers.DynamicCache(), logits_to_keep=1)
    return {"scores": stacked(scores)} | {f"kept_{i}": stacked(masks) for i, masks in enumerate(kept)}


def reconstructed(model: Any, ids: list[int], keeps: list[Decimal], whole: bool) -> Arrays:
    """KVzip of what follows the chat template's opening, as kvpress sets it up, or of the `whole` prompt.

    `start` is the length of that opening. `kept_i` is the press's own choice over all layers and heads together,
    `each_i` the best of every head by its scores: kvpress has no such form.
    """
    press = KVzipPress(compression_ratio=0.5)
    out: Arrays = {}
    select = press.compress_post

    def caught(model: Any) -> None:
        start = press.prefix_length
        scores = press.score_val = press.score_val[..., start:]
        out.update(start=np.array(start), scores=scores[:, 0].numpy().copy())
        for i, keep in enumerate(keeps):
            # This press removes ⌊total·ratio⌋.
            press.compression_ratio = 1 - (count_of(keep, scores.numel()) - 0.5) / scores.numel()
            select(model)
            mask = torch.ones(scores[:, 0].shape, dtype=torch.bool)
            for number, layer in enumerate(model.model.layers):
                _, head, row = layer.self_attn.masked_key_indices
                mask[number][head, row] = False
                layer.self_attn.masked_key_indices = None
            out[f"kept_{i}"] = mask.numpy()
            best = scores[:, 0].topk(count_of(keep, scores.shape[-1]), dim=-1).indices
            out[f"each_{i}"] = torch.zeros_like(mask).scatter(2, best, True).numpy()

    press.compress_post = caught
    with torch.no_grad(), press(model):
        model(input_ids=torch.tensor([ids]), past_key_values=transformers.DynamicCache(), logits_to_keep=1)
        if whole:
            press.prefix_length = 0
    return out


def stacked(layers: list[Any]) -> Any:
    """One numpy array of all layers."""
    return torch.stack(layers).numpy()


def main(request: Path, folder: Path) -> None:
    """Answer a request."""
    asked = json.loads(request.read_text())
    torch.set_num_threads(asked["threads"])
    transformers.utils.logging.disable_progress_bar()
    loader = transformers.AutoModelForCausalLM
    model = loader.from_pretrained(asked["model"], dtype=torch.float32, attn_implementation="sdpa").eval()
    keeps = [Decimal(keep) for keep in asked["keeps"]]
    for number, ids in enumerate(asked["prompts"]):
        for policy in asked["policies"]:
            if policy == "kvzip":
                answers = {name: reconstructed(model, ids, keeps, name == "whole") for name in ("opened", "whole")}
            else:
                answers = {"": scored(model, PRESSES[policy](), ids, keeps)}
            for name, arrays in answers.items():
                np.savez(folder / "-".join(filter(None, (policy, name, str(number)))), **arrays)
            print(f"kvpress {policy}: prompt {number + 1} of {len(asked['prompts'])}, {len(ids)} tokens", flush=True)
    versions = {name: version(name) for name in ("kvpress", "transformers", "torch")}
    (folder / "versions.json").write_text(json.dumps(versions))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
