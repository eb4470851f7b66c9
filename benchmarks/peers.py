"""Do the peers keep what their authors' code keeps? kvmill's selection against NVIDIA's kvpress, index by index.

`kvmill bench peers` takes six prompts of 300 to 1,503 tokens from the bundled samples, lets kvpress 0.5.4 compress
them in a virtual environment of its own (it needs an older transformers than kvmill; `--venv` reuses one), runs
`kvmill.select` on the same token ids and float32 weights, and compares what every KV head of every layer keeps. Two
programs that sum in different orders differ where two scores are as good as equal: every differing head is listed with
its relative score gap at the boundary. `--write` renews benchmarks/results/peers.json, which docs/policies.md tells.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvmill.benchmarks.pages.peers import compared, lines, totals
from kvmill.console import note, table
from kvmill.errors import UserError, unknown
from kvmill.replay.weights import cache_home
from kvmill.traces import samples
from kvmill.traces.tokens import tokenize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvmill.replay.model import LoadedModel

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "results" / "peers.json"
OTHER_SIDE = Path(__file__).resolve().parent / "elsewhere" / "kvpress_side.py"

KVPRESS = "0.5.4"
NEEDS = (f"kvpress=={KVPRESS}", "transformers>=4.56,<5.3")
POLICIES = ("snapkv", "expected_attention", "keydiff", "knorm", "kvzip")
KEEPS = ("0.2", "0.5")
LENGTHS = {"operations": (300, 700, 1500), "registry": (307, 711, 1503)}


def environment(given: str | None) -> Path:
    """The Python of an environment that holds kvpress: the given folder's, which is made if it is not there."""
    folder = Path(given).expanduser().resolve() if given else cache_home() / f"kvpress-{KVPRESS}"
    if folder.is_relative_to(ROOT):
        raise UserError(f"--venv {given}: give a folder outside {ROOT}")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.is_file():
        note(f"making an environment with {' and '.join(NEEDS)} in {folder}; with torch, some gigabytes")
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *NEEDS])
    asked = "from importlib.metadata import version; print(version('kvpress'))"
    found = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=False)
    if found.returncode or found.stdout.strip() != KVPRESS:
        raise UserError(f"{folder} holds kvpress {found.stdout.strip() or 'not at all'}; give one with {KVPRESS}")
    return python


def prompts_of(model: LoadedModel, count: int | None = None) -> list[dict[str, Any]]:
    """The beginnings of the first sample of each family, families in turn: `trajectory` and `ids`."""
    out: list[dict[str, Any]] = []
    for family, lengths in LENGTHS.items():
        text = tokenize(next(t for t in samples.load() if t.family == family), model.tokenizer)
        ids = [token for segment in text.segments for token in segment.ids]
        out += [{"trajectory": text.id, "ids": ids[:length]} for length in lengths]
    return sorted(out, key=lambda prompt: len(prompt["ids"]))[:count]


def ask(python: Path, folder: Path, request: Mapping[str, Any]) -> dict[str, str]:
    """Let kvpress answer a request into `folder`; returns its versions. UserError with its last line if it fails."""
    file = folder / "request.json"
    file.write_text(json.dumps(request))
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    _run([str(python), str(OTHER_SIDE), str(file), str(folder)], clean | {"HF_HUB_OFFLINE": "1"})
    return json.loads((folder / "versions.json").read_text())


def cells(
    model: LoadedModel, prompts: Sequence[Mapping[str, Any]], policies: Sequence[str], folder: Path
) -> Iterator[dict[str, Any]]:
    """One comparison after the other: policy, prompt, keep."""
    for number, prompt in enumerate(prompts):
        for policy in policies:
            for name, segments, scope, answers in _cases(policy, len(prompt["ids"]), number, folder):
                for at, keep in enumerate(KEEPS):
                    text = f"{policy}(keep={keep}{f',scope={scope}' if scope else ''})"
                    start = len(prompt["ids"]) - answers["scores"].shape[2]
                    mine = _kept(model, prompt["ids"], text, segments)[:, :, start:]
                    theirs = answers[f"{'each' if scope == 'uniform' else 'kept'}_{at}"]
                    found = compared(mine, theirs, answers["scores"], together=scope == "global")
                    what = {"policy": name, "trajectory": prompt["trajectory"], "tokens": len(prompt["ids"])}
                    yield {**what, "compared": answers["scores"].shape[2], "keep": keep, **found}
            note(f"kvmill {policy}: prompt {number + 1} of {len(prompts)}, {len(prompt['ids'])} tokens")


def _cases(policy: str, tokens: int, number: int, folder: Path) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
    """Name, segments, scope and kvpress's answers. kvzip with and without the template's opening, in both scopes."""
    if policy != "kvzip":
        yield policy, None, "", dict(np.load(folder / f"{policy}-{number}.npz"))
        return
    for form in ("opened", "whole"):
        answers = dict(np.load(folder / f"{policy}-{form}-{number}.npz"))
        start = int(answers["start"]) if form == "opened" else 0
        segments = [("prefix", start), ("assistant", tokens - start)] if start else None
        for scope in ("uniform", "global"):
            yield f"kvzip, {scope}", segments, scope, answers


def _kept(model: LoadedModel, ids: Sequence[int], policy: str, segments: Any) -> NDArray[np.bool_]:
    from kvmill.replay.selecting import select

    chosen = select(model, ids, policy, segments=segments)
    mask = np.zeros((len(chosen), len(next(iter(chosen.values()))), len(ids)), dtype=bool)
    for layer, heads in zip(mask, chosen.values(), strict=True):
        for head, rows in zip(layer, heads, strict=True):
            head[rows] = True
    return mask


def figures(model: LoadedModel, found: Sequence[Mapping[str, Any]], versions: Mapping[str, str]) -> dict[str, Any]:
    """What the page is made of, with versions of both sides."""
    from importlib.metadata import version

    from kvmill import __version__

    mine = {"kvmill": __version__, **{name: version(name) for name in ("torch", "transformers")}}
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "dtype": model.dtype_name,
        "versions": {"kvmill": mine, "kvpress": dict(versions)},
        "cells": list(found),
    }


def written(found: Mapping[str, Any]) -> str:
    """The figures as JSON with a line for every cell."""
    head = json.dumps({k: v for k, v in found.items() if k != "cells"}, indent=1, ensure_ascii=False)
    body = ",\n".join(f"  {json.dumps(cell, ensure_ascii=False)}" for cell in found["cells"])
    return head.removesuffix("\n}") + f',\n "cells": [\n{body}\n ]\n}}\n'


def _run(command: list[str], environ: Mapping[str, str] | None = None) -> None:
    """A child process whose output lines are notes. UserError with the last line of its errors if it fails."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            note(line.rstrip())
        if child.wait():
            errors.seek(0)
            said = [line.strip() for line in errors if line.strip()] or [f"exit code {child.returncode}"]
            raise UserError(f"{Path(command[0]).name} {' '.join(command[1:3])}: {said[-1][:300]}")


def main() -> None:
    """The command."""
    from kvmill.replay.model import convert, load_model
    from kvmill.replay.weights import resolve

    parser = argparse.ArgumentParser(prog="kvmill bench peers", description=__doc__)
    parser.add_argument("--venv", help=f"environment with kvpress {KVPRESS}; made there if absent (user's cache)")
    parser.add_argument("--prompts", type=int, help="only the shortest of the six")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), help="some of " + ", ".join(POLICIES))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, help="of both sides (as kvmill replay)")
    parser.add_argument("--write", action="store_true", help="renew benchmarks/results/peers.json")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    for policy in asked.policies:
        if policy not in POLICIES:
            raise unknown("peer", policy, POLICIES)
    if asked.write and (asked.prompts or set(asked.policies) != set(POLICIES)):
        raise UserError("--write renews all figures: leave --prompts and --policies out")
    python = environment(asked.venv)
    model = load_model(asked.model, dtype="float32", threads=asked.threads)
    weights = resolve(asked.model)
    prompts = prompts_of(model, asked.prompts)
    with tempfile.TemporaryDirectory(prefix="kvmill-peers-") as name:
        request = {
            "model": str(convert(weights) if weights.gguf else weights.reference),
            "threads": model.threads,
            "keeps": KEEPS,
            "policies": asked.policies,
            "prompts": [prompt["ids"] for prompt in prompts],
        }
        versions = ask(python, Path(name), request)
        found = figures(model, list(cells(model, prompts, asked.policies, Path(name))), versions)
    if asked.write:
        FIGURES.write_text(written(found))
    if asked.json:
        print(json.dumps(found, ensure_ascii=False))
        return
    print(table(lines(found["cells"]), {name: name for name in lines(found["cells"])[0]}))
    print()
    print(table(totals(found["cells"]), {name: name for name in totals(found["cells"])[0]}))


if __name__ == "__main__":
    main()
