"""The configuration: its documented example, and one clear line for everything that is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.nightly.config import EXECUTING, MARGINS, REPLAY, TABLES, TEXTS, TRACES, load_config
from kvmill.nightly.fleet import NEEDED, checked, require_possible
from kvmill.replay.gate_nouns import Rules
from kvmill.traces.store import Store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "nightly.md"
GPU = "'h100'"
PLANNED = f"[plan]\nworkload = 'samples'\nmodel = 'qwen3-8b'\ngpu = {GPU}\nslo = ['ttft_p95=2']\n"
TRACED = '[traces]\npinned = ["samples"]\n'


def example() -> str:
    (found,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return found


def written(folder: Path, text: str) -> Path:
    path = folder / "nightly.toml"
    path.write_text(text)
    return path


def test_the_documented_example_is_read_and_shows_every_key(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, example()))
    assert config.pinned == ("samples",)
    assert (config.per_family, config.newest) == (20, 20)
    assert config.replay["measure"] == "both"
    assert config.rules.peak_share == {"te(proxy=assistant,delay=1,keep=0.2)": 0.8}
    assert config.plan["agents"] == 400
    assert config.other_code
    for key in (*TEXTS, *TABLES, *TRACES, *REPLAY, *EXECUTING, *MARGINS, *NEEDED):
        assert re.search(rf"\b{key}\b", example()), key


def test_the_documented_margins_are_the_defaults(tmp_path: Path) -> None:
    shown = load_config(written(tmp_path, example())).rules
    default = load_config(written(tmp_path, TRACED)).rules
    assert default == Rules()
    assert (shown.margins, shown.peak, shown.kept) == (default.margins, default.peak, default.kept)


def test_defaults_are_as_documented(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, TRACED))
    assert (config.name, config.folder, config.prometheus) == ("nightly", Path("kvmill-nightly"), None)
    assert (config.newest, config.newest_from, config.per_family, config.replay, config.plan) == (
        0,
        "all",
        None,
        {},
        {},
    )
    assert not config.other_code


def test_false_switches_a_test_off(tmp_path: Path) -> None:
    rules = load_config(written(tmp_path, f"{TRACED}[gate]\nkl = false\nkept = false\ndelta_nll = 1\n")).rules
    assert (rules.margins["kl"], rules.kept, rules.margins["delta_nll"]) == (None, None, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no traces: give pinned"),
        (f'nmae = "a"\n{TRACED}', "unknown key 'nmae' in nightly.toml. Did you mean 'name'"),
        (f"name = 3\n{TRACED}", "name = 3: give a text"),
        ('[traces]\npined = ["samples"]\n', "unknown key 'pined' in nightly.toml: traces"),
        ("[traces]\npinned = [1]\n", "pinned = [1]: give a list of texts"),
        ("[traces]\nnewest = true\n", "newest = True: give a whole number"),
        ("[traces]\nnewest = -1\n", "newest = -1: give 1 or more"),
        (f"{TRACED}per_family = 0\n", "per_family = 0: give 1 or more"),
        ("traces = 3\n", "traces: give a table, [traces]"),
        (f'{TRACED}[replay]\nmodle = "x"\n', "unknown key 'modle' in nightly.toml: replay"),
        (f'{TRACED}[replay]\nmode = "fast"\n', "unknown mode 'fast'"),
        (f'{TRACED}[replay]\nmeasure = "all"\n', "unknown measure 'all'"),
        (f'{TRACED}[replay]\npolicies = ["lru"]\n', "unknown policy 'lru'"),
        (f'{TRACED}[replay]\nseed = "1"\n', "seed = '1': give a whole number"),
        (f'{TRACED}[replay]\nexecutor = "dask"\n', "unknown executor 'dask'"),
        (f"{TRACED}[replay]\nworkers = 2\n", "--workers: only for --executor ray"),
        (f"{TRACED}[gate]\nkv = 1\n", "unknown key 'kv' in nightly.toml: gate"),
        (f"{TRACED}[gate]\nkl = -0.1\n", "kl = -0.1: a number of 0 or more, or false"),
        (f"{TRACED}[gate]\nkl = true\n", "kl = True: a number of 0 or more, or false"),
        (f"{TRACED}[gate]\nkv_tokens_peak = false\n", "the peak KV is always held to its promise"),
        (f"{TRACED}[gate]\npeak_share = 1\n", "peak_share: give a table"),
        (f'{TRACED}[gate.peak_share]\n"lru" = 1\n', "unknown policy 'lru'"),
        (f'{TRACED}[plan]\nworkload = "samples"\n', "[plan] needs workload, model, gpu, slo"),
        (
            f'{TRACED}[plan]\nworkload = "a"\nmodel = "b"\ngpu = "c"\nslo = []\nagnets = 3\n',
            "unknown key 'agnets' in nightly.toml: plan. Did you mean 'agents'",
        ),
        ("name = \n", "not TOML"),
        (f'name = ""\n{TRACED}', "name = '': an empty text names nothing"),
        ('[traces]\npinned = [""]\n', "pinned = ['']: an empty text names nothing"),
        (f"{TRACED}[replay]\npolicies = []\n", "policies = []: give one at least"),
        (f"{TRACED}[replay]\nlatency_repeats = 0\n", "latency_repeats = 0: give 1 or more"),
        (f"{TRACED}[replay]\nthreads = 0\n", "threads = 0: give 1 or more"),
        (f'{TRACED}[replay]\nactions = "hermes"\n', "--actions: only for --mode stepwise or closed"),
        (f'{TRACED}[replay]\nmode = "stepwise"\nmax_turns = 3\n', "--max-turns: only for --mode closed"),
        (f'{TRACED}[replay]\nmode = "closed"\nmeasure = "both"\n', "--mode closed measures what the model does"),
        (f'{TRACED}[gate.peak_share]\n"te(keep=0.3)" = 1\n', "unknown policy 'te(keep=0.3)'"),
        (f"{TRACED}{PLANNED}agents = 'many'\n", "agents = 'many': give a whole number"),
        (f"{TRACED}{PLANNED}agents = 4.5\n", "agents = 4.5: give a whole number"),
        (f"{TRACED}{PLANNED}sensitivity = 1\n", "sensitivity = 1: give true or false"),
        (f"{TRACED}{PLANNED}price = true\n", "price = True: give a number"),
        (f"{TRACED}{PLANNED}replications = 1\n", "replications = 1: give 2 or more"),
        (f"{TRACED}{PLANNED}policies = 3\n", "policies = 3: give "),
        (f"{TRACED}{PLANNED.replace(GPU, '[1]')}", "gpu = [1]: give a text"),
        (f"{TRACED}{PLANNED.replace('ttft_p95=2', 'ttft=2')}", "--slo 'ttft=2'"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(written(tmp_path, text))
    assert said in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"absent\.toml: No such file"):
        load_config("absent.toml")


def test_the_workflows_run_at_odd_minutes() -> None:
    minutes = re.findall(r"(?:cron: \"|```cron\n)(\d+) ", DOCUMENT.read_text())
    assert len(minutes) == 3
    assert all(int(minute) % 2 for minute in minutes)
    assert tomllib.loads(example())["name"] == "nightly"


def test_a_promise_is_about_the_policy_however_it_is_spelled(tmp_path: Path) -> None:
    replay = '[replay]\npolicies = ["te(proxy=assistant,delay=1,keep=0.2)"]\n'
    promise = '[gate.peak_share]\n"te(keep=0.20,delay=1,proxy=assistant)" = 0.8\n'
    rules = load_config(written(tmp_path, f"{TRACED}{replay}{promise}")).rules
    assert rules.peak_share == {"te(proxy=assistant,delay=1,keep=0.2)": 0.8}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload": "sampels"}, "unknown workload 'sampels'"),
        ({"model": "qwen9"}, "unknown model"),
        ({"gpu": "h999"}, "unknown GPU 'h999'"),
        ({"policies": ["lru"]}, "unknown policy 'lru'"),
        ({"tp": 3}, "--tp 3"),
        ({"dtype": "int3"}, "--dtype"),
        ({"agents": 0}, "agents"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_the_night(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    plan = checked(tomllib.loads(f"{PLANNED}agents = 4\nreplications = 2\nsensitivity = false\n")["plan"], "plan")
    require_possible(Store.open(tmp_path), plan)
    require_possible(Store.open(tmp_path), {**plan, "policies": "full"})
    with pytest.raises(UserError, match=said):
        require_possible(Store.open(tmp_path), {**plan, **change})
