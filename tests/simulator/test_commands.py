import json
import re

import pytest
import typer
from typer.testing import CliRunner
from worlds import TE

from kvmill.simulator.answers import plan_named, simulate
from kvmill.simulator.commands import register, steps
from kvmill.traces.store import Store

RUN, APP = CliRunner(), typer.Typer()
register(APP)
LOAD = ["--workload", "samples", "--model", "smollm2-135m", "--gpu", "l40s", "--agents", "50"]
SIMULATE_KEYS = [
    "gpus", "replicas", "tp", "batch_mean", "batch_max", "throughput_requests_per_s", "throughput_tokens_per_s",
    "goodput_requests_per_s", "ttft_s", "tpot_s", "e2e_s", "kv_used_share", "preemptions", "binding_constraint",
    "assumptions",
]  # fmt: skip


def invoke(*args, store):
    return RUN.invoke(APP, [*args, "--store", str(store)])


def test_simulate_prints_one_object_with_the_promised_keys_and_stores_its_rows(tmp_path):
    done = invoke("simulate", *LOAD, "--gpus", "2", "--keep", "0.2", "--json", store=tmp_path)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert not [key for key in SIMULATE_KEYS if key not in found]
    assert found["policy"] == TE
    assert found["quality_model"] is None
    rows = Store.open(tmp_path).query("SELECT policy, gpus, run_id FROM simulations").to_pylist()
    assert rows == [{"policy": TE, "gpus": 2, "run_id": found["run"]}]
    assert Store.open(tmp_path).latest("simulate").run_id == found["run"]


def test_simulate_in_words_answers_first(tmp_path):
    done = invoke("simulate", *LOAD, "--gpus", "1", store=tmp_path)
    assert done.stdout.startswith("1 × L40S (1 replica of smollm2-135m) serving samples under full keeps")
    assert re.search(r"^Simulated: 1 replication, [\d,]+ turns in all, seed 0\.$", done.stdout, re.MULTILINE)
    assert "estimated at 4 characters per token" in done.stdout


def test_the_function_returns_what_the_command_prints(tmp_path):
    printed = json.loads(invoke("simulate", *LOAD, "--gpus", "1", "--json", store=tmp_path).stdout)
    called = simulate("samples", "smollm2-135m", "l40s", 1, agents=50, store=tmp_path)
    assert {k: v for k, v in printed.items() if k != "run"} == json.loads(
        json.dumps({k: v for k, v in called.items() if k != "run"})
    )


def test_plan_prints_the_answer_and_stores_plans_and_their_simulations(tmp_path):
    args = ["plan", *LOAD, "--slo", "ttft_p95=2", "--slo", "tpot_p95=0.05", "--replications", "2"]
    done = invoke(*args, "--json", store=tmp_path)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["policy"] for row in found["plans"]] == ["full", TE]
    assert found["answer"].startswith("With `te(proxy=assistant,delay=1,keep=0.2)`")
    store = Store.open(tmp_path)
    rows = store.query("SELECT policy, gpus, detail FROM plans ORDER BY policy").to_pylist()
    assert [row["policy"] for row in rows] == ["full", TE]
    assert json.loads(rows[1]["detail"])["gpus"] == rows[1]["gpus"]
    simulated = store.query("SELECT policy, replication, gpus, ttft_p95_s FROM simulations").to_pylist()
    assert {row["policy"] for row in simulated} == {"full", TE}
    assert {row["replication"] for row in simulated} == {0, 1}
    assert store.latest("plan").config["policies"] == ["full", TE]


def test_no_feasible_fleet_prints_the_answer_and_exits_4(tmp_path):
    args = ["plan", *LOAD, "--slo", "tpot_p95=0.0001", "--replications", "2", "--max-gpus", "4", "--json"]
    done = invoke(*args, store=tmp_path)
    assert done.exit_code == 4
    assert [row["feasible"] for row in json.loads(done.stdout)["plans"]] == [False, False]
    assert "no answer: no fleet of up to 4 GPUs" in done.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--model", "qwen9"], "unknown model geometry 'qwen9'"),
        (["--gpu", "a11g"], "unknown GPU 'a11g'"),
        (["--workload", "nosuch"], "unknown workload 'nosuch'"),
        (["--policy", "tee"], "unknown policy 'tee'"),
        (["--policy", "te(proxi=assistant)"], "unknown option 'proxi'"),
        (["--slo", "latency=2"], "metric_pQ=SECONDS"),
        (["--tp", "three"], "--tp 'three'"),
        (["--seed", "-1"], "--seed -1: a whole number from 0"),
        (["--tp", "²"], "--tp '²'"),
        (["--slo", "ttft_p95=1e999"], "metric_pQ=SECONDS"),
        (["--scale-tokens", "inf"], "--scale-tokens: a factor above 0"),
        (["--tool-wait", "lognormal:1.2.3,4"], "lognormal:P50,P90"),
        (["--tool-wait", "lognormal:.,."], "lognormal:P50,P90"),
        (["--agents", "5", "--rate", "2"], "exclude each other"),
        (["--tool-wait", "normal:1,2"], "lognormal:P50,P90"),
        (["--prefix-tokens", "10"], "is for request logs"),
        (["--price", "-1"], "must be above 0"),
        (["--dtype", "int4"], "--dtype 'int4'"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_exit_2(tmp_path, args, reason):
    base = {"--workload": "samples", "--model": "smollm2-135m", "--gpu": "l40s", "--slo": "ttft_p95=2"}
    given = base | dict(zip(args[::2], args[1::2], strict=True))
    done = invoke("plan", *[text for pair in given.items() for text in pair], store=tmp_path)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert done.stdout == ""


def test_gpus_must_fill_whole_replicas(tmp_path):
    done = invoke("simulate", *LOAD, "--model", "qwen3-8b", "--gpus", "3", "--tp", "2", store=tmp_path)
    assert done.exit_code == 2
    assert "multiple of the tensor-parallel size 2" in done.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--max-load"], "say of how many GPUs"),
        (["--gpus", "4"], "with --max-load"),
        (["--max-load", "--gpus", "1", "--sweep", "keep=0.1"], "exclude each other"),
        (["--method", "guess"], "one of queueing, paper"),
        (["--method", "paper", "--sweep", "keep=0.1"], "--method paper has no --sweep"),
        (["--sweep", "keep=0.1", "--attribute"], "--sweep has no --attribute"),
        (["--max-load", "--gpus", "1", "--attribute"], "--max-load has no --attribute"),
        (["--scale-load", "1e308"], "--scale-load: a factor above 0, up to 1,000,000"),
        (["--method", "paper", "--router", "round-robin"], "--method paper has no --router"),
        (["--method", "paper", "--fail", "10"], "--method paper has no --fail"),
        (["--method", "paper", "--attribute"], "--method paper has no --attribute"),
        (["--method", "paper", "--replications", "20"], "--method paper has no --replications"),
        (["--method", "paper", "--max-gpus", "20"], "--method paper has no --max-gpus"),
        (["--sweep", "colour=red"], "unknown axis 'colour'"),
        (["--retention", "ever"], "--retention 'ever'"),
        (["--router", "magic"], "unknown router 'magic'"),
        (["--max-model-len", "100000"], "--max-model-len 100,000"),
        (["--calibration", "nowhere.toml"], "No such file"),
        (["--compaction", "later"], "one of inline, beside"),
    ],
)
def test_questions_that_do_not_go_together_and_settings_that_cannot_be(tmp_path, args, reason):
    done = invoke("plan", *LOAD, "--slo", "ttft_p95=2", *args, store=tmp_path)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_every_flag_of_the_deployment_is_listed_with_the_answer(tmp_path):
    flags = {
        "--retention": "ttl:5", "--preemption": "swap", "--compaction": "beside", "--coarse-tokens": "32",
        "--token-budget": "4096", "--max-sequences": "16", "--router": "round-robin", "--max-model-len": "4000",
        "--fail": "2",
    }  # fmt: skip
    args = [text for pair in flags.items() for text in pair]
    found = json.loads(invoke("simulate", *LOAD, "--gpus", "2", *args, "--json", store=tmp_path).stdout)
    for flag, value in flags.items():
        if flag != "--fail":
            assert str(found[flag[2:].replace("-", "_")]) == value
    said = found["assumptions"]
    assert "for 5 s at most" in said["retention"]
    assert "4,096 tokens per step, 16 sequences" in said["batching"]
    assert said["failure"] == "one replica is out for 2 s"


def test_a_series_comes_with_the_answer_and_every_turn_goes_to_the_store(tmp_path):
    found = json.loads(
        invoke("simulate", *LOAD, "--gpus", "1", "--series", "--turns", "300", "--json", store=tmp_path).stdout
    )
    assert len(found["series"]) == 60
    assert sum(row["requests"] for row in found["series"]) == pytest.approx(found["requests"], abs=5)
    store = Store.open(tmp_path)
    assert store.query("SELECT count(*) AS n FROM sim_turns").to_pylist() == [{"n": found["requests"]}]
    text = invoke("simulate", *LOAD, "--gpus", "1", "--series", "--turns", "300", store=tmp_path).stdout
    assert "Over time (60 intervals, some of them)" in text
    assert "p99 " in text.split("Not told from so few turns")[1].splitlines()[0], "300 turns tell no p99"


def test_a_sweep_lists_every_setting_and_stores_every_plan(tmp_path):
    found = plan_named(
        "samples", "smollm2-135m", "l40s", agents=50, slo=["ttft_p95=2"], sweep=["keep=0.1,0.4", "gpu=l40s,h100"],
        replications=2, turns=200, store=tmp_path,
    )  # fmt: skip
    policies = ("full", TE.replace("0.2", "0.1"), TE.replace("0.2", "0.4"))
    assert [(row["gpu"], row["policy"]) for row in found["sweep"]] == [
        (gpu, policy) for gpu in ("l40s", "h100") for policy in policies
    ]
    assert [row["policy"] for row in found["pareto"]] == ["full"], "quality of the others was not measured"
    assert found["pareto_note"].startswith("4 settings")
    assert found["gpu"] == "l40s"
    assert len(Store.open(tmp_path).query("SELECT DISTINCT run_id FROM plans").to_pylist()) == 2


def test_progress_past_what_was_expected_is_no_line_for_each_step(capsys, monkeypatch):
    monkeypatch.delenv("KVMILL_QUIET")
    tick = steps("plan", "simulations", 4)
    for _ in range(40):
        tick("full on 35 GPUs")
    told = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in told] == ["plan 4/4 simulations"]
