"""The floors of the design, walked over the source: who may import whom, and who never imports torch."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    "errors": 0,
    "console": 0,
    "options": 0,
    "toml": 0,
    "traces": 1,
    "kernels": 1,
    "replay": 2,
    "simulator": 3,
    "api": 4,
    "demo": 4,
    "nightly": 4,
    "benchmarks": 5,
    "dashboard": 5,
    "cli": 6,
    "__main__": 7,
}
# `kvmill.plan` and its like are imported on first use by the root package, which itself lies below everything.
LAZY_ROOT = ("kvmill", "kvmill.api")
SCORING = ("captures", "sight", "peer_scores", "states", "state_table")  # and every `*_state`: what holds tensors
GATE = ("gate", "gate_nouns", "gate_rows", "gate_speed", "gate_tests")
DECIDING = ("recommend", "sequential", "looks", "until_decided")
TORCH_FREE = {f"kvmill.replay.{name}" for name in ("results", "statistics", "profile", "equal", *GATE, *DECIDING)}
TORCH_FREE_FOLDERS = ("traces", "simulator", "dashboard")
HEAVY_MODEL_STACK = {"torch", "triton", "transformers"}
BARE_GPU_MACHINE = {"torch", "triton", "transformers", "pyarrow"}
NOT_SOURCE = ("tests", "docs", "build", "dist")
MEDIAN_LINES, MOST_LINES = 120, 350


@cache
def modules() -> dict[str, Path]:
    """Dotted name → file, of every source file. `kvmill.cli`, `kvmill.traces`, `kvmill.traces.store`, …"""
    out = {}
    for path in [*ROOT.glob("*.py"), *(p for folder in source_folders() for p in folder.glob("*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        out[".".join(("kvmill", *(p for p in parts if p != "__init__")))] = path
    return out


@cache
def source_folders() -> list[Path]:
    """Every folder with an `__init__.py`, the root and the tests apart."""
    tops = [f for f in ROOT.iterdir() if f.is_dir() and f.name[0] != "." and f.name not in NOT_SOURCE]
    return sorted(init.parent for top in tops for init in top.rglob("__init__.py"))


@cache
def imports(name: str, top_only: bool = False) -> tuple[str, ...]:
    """What a module imports, absolute; `top_only` leaves out imports inside functions and TYPE_CHECKING."""
    return tuple(_imports(name, top_only))


def _imports(name: str, top_only: bool) -> Iterator[str]:
    path = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in walk(ast.parse(path.read_text()), top_only):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                yield whole if whole in modules() else origin


def walk(node: ast.AST, top_only: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if top_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield child
        yield from walk(child, top_only)


def ours(name: str, *, top_only: bool = False) -> set[str]:
    return {found for found in imports(name, top_only) if found in modules()} - {name}


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def torch_free() -> list[str]:
    named = {
        m for m in modules() if part(m) in TORCH_FREE_FOLDERS or part(m) in ("errors", "console", "api", "cli", "demo")
    }
    arithmetic = {m for m in modules() if m.startswith("kvmill.replay.policies.") and not is_scorer(m)}
    return sorted(named | arithmetic | (TORCH_FREE & set(modules())))


def is_scorer(name: str) -> bool:
    """Whether a file of the policies holds tensors; the others are arithmetic that a planner needs on a laptop."""
    file = name.removeprefix("kvmill.replay.policies.")
    return file != name and (file.endswith(("_state", "_states")) or file in SCORING)


def test_every_source_file_has_a_floor():
    assert {part(name) for name in modules() if "." in name} <= set(FLOORS)


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_down_only(name):
    floor = FLOORS.get(part(name), -1)
    for found in ours(name):
        if (name, found) == LAZY_ROOT or found == "kvmill":
            continue
        same_part = part(found) == part(name)
        up = f"{name} (floor {floor}) imports {found} (floor {FLOORS[part(found)]})"
        assert same_part or FLOORS[part(found)] < floor or (floor in (0, 4) and FLOORS[part(found)] == floor), up


def test_no_module_imports_itself_in_a_circle():
    graph = {name: ours(name) - ({"kvmill.api"} if name == "kvmill" else set()) for name in modules()}
    state: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert state.get(name) != 1, f"circle: {' → '.join([*path[path.index(name) :], name])}"
        if state.get(name) == 2:
            return
        state[name] = 1
        for found in sorted(graph[name]):
            visit(found, (*path, name))
        state[name] = 2

    for name in graph:
        visit(name, ())


def test_torch_free_parts_load_without_the_model_stack():
    pages = [m for m in torch_free() if "app_pages." in m or m == "kvmill.dashboard.app"]  # scripts, run by Streamlit
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        f"    bad = sorted({HEAVY_MODEL_STACK!r} & set(sys.modules))\n"
        "    assert not bad, f'{name} brings {bad}'\n"
    )
    names = [m for m in torch_free() if m not in pages]
    out = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr[-800:]


def test_torch_free_parts_do_not_reach_the_model_stack_later_either():
    """Inside functions too. Commands, `api` and `demo` start replays, so they alone may."""
    starters = {"kvmill.api", "kvmill.demo", "kvmill.cli"}
    for name in torch_free():
        if name in starters or name.endswith(".commands"):
            continue
        found = {f.split(".")[0] for f in imports(name)} & HEAVY_MODEL_STACK
        assert not found, f"{name} imports {found}"
        heavy = {m for m in ours(name) if reached(m) & HEAVY_MODEL_STACK}
        assert not heavy, f"{name} imports {heavy}, which needs the model stack"


@cache
def reached(name: str) -> frozenset[str]:
    """Top-level names that importing a module loads, through our own files."""
    seen, todo, outside = set(), [name], set()
    while todo:
        here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        todo += ours(here, top_only=True)
        outside |= {f.split(".")[0] for f in imports(here, True) if f not in modules()}
    return frozenset(outside - {"kvmill"})


def test_kernels_engine_and_scorers_run_on_a_bare_gpu_machine():
    parts = [m for m in modules() if part(m) == "kernels" or m == "kvmill.replay.engine" or is_scorer(m)]
    assert "kvmill.kernels.reference" in parts
    for name in parts:
        extra = reached(name) - BARE_GPU_MACHINE - set(sys.stdlib_module_names)
        assert not extra, f"{name} needs {sorted(extra)} at import"


def test_kernels_init_is_a_docstring_and_nothing_else():
    body = ast.parse((ROOT / "kernels" / "__init__.py").read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


def test_only_the_model_file_touches_transformers():
    users = [m for m in modules() if any(f.split(".")[0] == "transformers" for f in imports(m))]
    assert users == ["kvmill.replay.model"]


def test_files_are_short():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    tests = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in (ROOT / "tests").rglob("*.py")}
    assert {n: k for n, k in (lengths | tests).items() if k > MOST_LINES} == {}
    assert statistics.median(lengths.values()) <= MEDIAN_LINES


def test_packages_in_the_metadata_are_the_folders():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(("kvmill", *f.relative_to(ROOT).parts)): str(f.relative_to(ROOT)) for f in source_folders()}
    assert project["package-dir"] == {"kvmill": "."} | folders
    assert set(project["packages"]) == {"kvmill", *folders}
    for package, patterns in project["package-data"].items():
        for pattern in patterns:
            assert list((ROOT / project["package-dir"][package]).glob(pattern)), f"{package} ships no {pattern}"


def test_version_is_stated_once():
    from kvmill import __version__

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_the_map_is_short_and_names_every_file():
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.splitlines()) <= 60
    named = set(re.findall(r"`([^`]+)`", text)) | set(re.findall(r"/(\w+)`", text))
    # Readers of traces are listed by `kvmill traces formats`, each with its title.
    files = {n: p for n, p in modules().items() if p.name != "__init__.py" and p.parent.name != "readers"}
    assert [n for n, p in files.items() if p.stem not in named] == []
