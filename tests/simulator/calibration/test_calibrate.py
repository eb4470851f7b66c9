import json

import pyarrow as pa
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from kvmill.errors import InputError, UserError
from kvmill.simulator.calibration.calibrate import calibrate, calibrate_text
from kvmill.simulator.cost import CostModel
from kvmill.simulator.deployment import Deployment
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry


@pytest.fixture(scope="module")
def servers(shared_data):
    path = shared_data / "serving/aiconfigurator/silicon_sample.part.csv"
    if not path.is_file():
        pytest.skip("no server measurements in the shared data")
    return path


def test_servers_become_a_file_whose_error_the_plan_can_use(servers, tmp_path):
    out = tmp_path / "mine.toml"
    found = calibrate([servers], "h100", model="llama-3.1-8b", out=out)
    assert (found["n_fit"], found["n_held_out"]) == (43, 54)
    assert found["read"] == {"servers": 97}
    assert found["dropped"] == {"servers": 0}
    assert 0 < found["held_out_error"] < 0.10
    assert 0 < found["swapped_error"] < 0.10
    gpu = find_gpu("h100", calibration=out)
    assert gpu.step_error == pytest.approx(found["held_out_error"])
    cost = CostModel.of(Deployment(find_geometry("llama-3.1-8b"), gpu))
    assert cost.error == gpu.step_error
    assert cost.error_source == "measured: 54 held-out rows of servers in a closed loop"
    assert cost.host_s == pytest.approx(found["constants"]["host_step_s"])
    text = out.read_text()
    assert f"sha256:{found['tables'][0]['sha256']}" in text
    assert f'date = "{found["date"]}"' in text
    assert str(servers.parent) not in text, "the file names no folder of the machine"
    assert find_gpu(str(out)).name == "h100-calibrated"
    assert "Held-out error" in calibrate_text(found)


def test_operators_alone_leave_the_error_of_a_step_assumed(shared_data, tmp_path):
    path = shared_data / "serving/aiconfigurator/a100_sxm.vllm-0.14.0.gemm_perf.parquet"
    found = calibrate([path], "a100-80", out=tmp_path / "a.toml")
    assert found["constants"] is None
    assert found["error"] == find_gpu("a100-80").step_error
    assert found["error_source"].startswith("assumed")
    assert [figure["field"] for figure in found["figures"]] == ["matmul", "streaming", "overlap", "matmul_floor_s"]
    assert find_gpu("a100-80", tmp_path / "a.toml").matmul["bf16"] == pytest.approx(found["figures"][0]["value"])


def test_a_gpu_of_ones_own_is_calibrated_by_a_file_to_lay_over_it(shared_data, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('name = "mine"\nbase = "a100-40"\n', encoding="utf-8")
    path = shared_data / "serving/aiconfigurator/a100_sxm.vllm-0.14.0.gemm_perf.parquet"
    found = calibrate([path], str(own), out=tmp_path / "c.toml")
    assert "give it as --calibration." in calibrate_text(found)
    assert find_gpu(str(own), tmp_path / "c.toml").matmul["bf16"] == pytest.approx(found["figures"][0]["value"])
    with pytest.raises(UserError, match="missing"):
        find_gpu(str(tmp_path / "c.toml"))


def test_impossible_rows_are_counted_in_the_answer(tmp_path):
    rows = {"gemm_dtype": ["bfloat16"] * 40, "m": [4096 + i for i in range(40)], "n": [4096] * 40, "k": [8192] * 40}
    honest = [2 * m * 4096 * 8192 / (0.7 * 989e12) * 1e3 for m in rows["m"]]
    latency = [t / 100 if i % 4 == 0 else t for i, t in enumerate(honest)]
    path = tmp_path / "t.csv"
    csv.write_csv(pa.table(rows | {"latency": latency}), path)
    found = calibrate([path], "h100")
    assert (found["read"], found["dropped"]) == ({"matmul": 40}, {"matmul": 10})
    assert "10 dropped as beyond what h100 can do" in calibrate_text(found)


def test_what_says_nothing_is_an_error(servers, tmp_path):
    with pytest.raises(InputError, match="no row of servers is of l40s"):
        calibrate([servers], "l40s")
    path = tmp_path / "t.csv"
    csv.write_csv(pa.table({"gemm_dtype": ["int8"], "m": [1], "n": [1], "k": [1], "latency": [1.0]}), path)
    with pytest.raises(InputError, match=r"no row of t\.csv says anything of h100"):
        calibrate([path], "h100")


def test_steps_need_the_model(tmp_path):
    names = ("decode_sequences", "decode_context_tokens", "prefill_sequences", "prefill_tokens")
    path = tmp_path / "steps.csv"
    csv.write_csv(pa.table({name: [1] for name in names} | {"seconds": [0.01]}), path)
    with pytest.raises(UserError, match="needs --model"):
        calibrate([path], "h100")
    with pytest.raises(InputError, match="steps are possible"):
        calibrate([path], "h100", model="llama-3.1-8b")


def test_the_command_prints_one_object(servers):
    import typer

    from kvmill.simulator.calibration.commands import register

    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    out = CliRunner().invoke(app, ["calibrate", str(servers), "--gpu", "h100", "--model", "llama-3.1-8b", "--json"])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout)
    assert found["n_held_out"] == 54
    bad = CliRunner().invoke(app, ["calibrate", str(servers), "--gpu", "h101"])
    assert bad.exit_code == 2
    assert "unknown GPU" in bad.output
