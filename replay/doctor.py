"""What a bug report needs to say about this machine, and what would keep a replay from working."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..console import table
from ..traces.store import Store
from .weights import ALIASES, cache_home, cached_file, converted_folder

PACKAGES = (
    "torch",
    "transformers",
    "triton",
    "tokenizers",
    "safetensors",
    "accelerate",
    "gguf",
    "numpy",
    "scipy",
    "simpy",
    "duckdb",
    "pyarrow",
    "botocore",
    "s3fs",
    "pandas",
    "streamlit",
)
REPLAY_NEEDS = ("torch", "transformers", "safetensors", "accelerate", "gguf")
FEATURES = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512f", "avx2", "bf16", "sve")


def examine(store: Store) -> dict[str, Any]:
    """Versions, processor, torch's view of the machine, cache, store, models, and `problems` in words."""
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name in REPLAY_NEEDS if versions[name] is None]
    problems = [f"replay needs {', '.join(missing)}: pip install 'kvmill[replay]'"] if missing else []
    cache = cache_home()
    if not os.access(_existing(cache), os.W_OK):
        problems.append(f"the cache folder {cache} cannot be written: set KVMILL_CACHE")
    if not os.access(_existing(store.desk), os.W_OK):
        problems.append(f"the store {store} cannot be written: give another with --store or KVMILL_STORE")
    problems += store.check()
    runs = store.runs()
    return {
        "kvmill": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "versions": versions,
        "torch": None if "torch" in missing else _torch(),
        "cache": {"path": str(cache), "free_bytes": shutil.disk_usage(_existing(cache)).free},
        "store": {
            "path": str(store),
            "runs": len(runs),
            "complete": sum(run.state == "complete" for run in runs),
        },
        "models": models(),
        "problems": problems,
    }


def models() -> list[dict[str, Any]]:
    """The known aliases and whether they are here."""
    return [
        {
            "name": alias.name,
            "about": alias.about,
            "present": cached_file(alias).is_file(),
            "converted": (converted_folder(alias.sha256) / "config.json").is_file(),
            "path": str(cached_file(alias)),
            "sha256": alias.sha256,
            "sources": [*alias.wheels, alias.hub],
        }
        for alias in ALIASES.values()
    ]


def examine_text(found: dict[str, Any]) -> str:
    """The same for a terminal."""
    torch = found["torch"] or {}
    rows = [
        ("kvmill", found["kvmill"]),
        ("python", found["python"]),
        ("platform", found["platform"]),
        *((f"  {name}", version or "not installed") for name, version in found["versions"].items()),
        *((f"torch {key.replace('_', ' ')}", _listed(value)) for key, value in torch.items()),
        ("cache", f"{found['cache']['path']} ({found['cache']['free_bytes'] / 1e9:.0f} GB free)"),
        ("store", f"{found['store']['path']} ({found['store']['runs']} runs, {found['store']['complete']} complete)"),
        *((f"model {m['name']}", _presence(m)) for m in found["models"]),
        *(("problem", problem) for problem in found["problems"] or ["none found"]),
    ]
    return table([{"what": what, "found": value} for what, value in rows], {"what": "what", "found": "found"})


def _torch() -> dict[str, Any]:
    import torch

    from .device import choose_dtype, choose_threads, cpu_features

    cpu = torch.device("cpu")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "threads": choose_threads(None),
        "cpu_features": [name for name in FEATURES if name in cpu_features()],
        "cpu_dtype": str(choose_dtype("auto", cpu)).removeprefix("torch."),
        "cuda": torch.version.cuda,
        "gpus": gpus,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    """The nearest folder that exists."""
    path = path.absolute()
    return next(parent for parent in [path, *path.parents] if parent.exists())


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _presence(model: dict[str, Any]) -> str:
    if not model["present"] and not model["converted"]:
        return f"not here: kvmill models pull {model['name']}"
    return "ready" if model["converted"] else "here, converted at its first use"
