import pytest

from kvmill.errors import UserError
from kvmill.simulator.calibration.toml import gpu_toml
from kvmill.simulator.gpu_file import KEYS, read_calibration, read_gpu
from kvmill.simulator.gpus import GPUS
from kvmill.simulator.hardware import find_gpu

WHOLE = """
name = "own"
usable_gib = 47.0
bandwidth_gb_s = 900
decode_attention_efficiency = 0.8
prefill_attention_efficiency = 0.5
attention_floor_us = 12
[dense_tflops]
bf16 = 300
[matmul_efficiency]
bf16 = 0.6
[streaming_efficiency]
bf16 = 0.8
[matmul_floor_us]
bf16 = 3
"""


def written(tmp_path, text, name="own.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_gpu_starts_from_a_known_one_and_changes_what_the_file_says(tmp_path):
    path = written(
        tmp_path,
        'name = "mine"\nbase = "h100"\nprice_per_hour_usd = 2.5\nhost_step_ms = 0.4\nhost_sequence_us = 50\n'
        "[matmul_efficiency]\nfp8 = 0.5\n[all_reduce_us]\n2 = [[65536, 5.0], [16777216, 90.0]]\n",
    )
    gpu, h100 = read_gpu(path), GPUS["h100"]
    assert (gpu.name, gpu.price_per_hour, gpu.host_step_s) == ("mine", 2.5, 0.4e-3)
    assert gpu.host_sequence_s == pytest.approx(50e-6)
    assert gpu.matmul == {"bf16": h100.matmul["bf16"], "fp8": 0.5}
    assert gpu.all_reduce(2) == (pytest.approx((65536.0, 5e-6)), pytest.approx((16777216.0, 90e-6)))
    assert gpu.all_reduce(8) == h100.all_reduce(8)
    assert gpu.usable_gib == h100.usable_gib
    assert gpu.price_source == gpu.efficiency_source == gpu.host_source == "own.toml (given)"
    assert gpu.usable_source == h100.usable_source
    assert (gpu.step_error, gpu.error_source) == (h100.step_error, "assumed: as of h100")


def test_a_gpu_may_be_given_whole_and_then_has_no_price(tmp_path):
    gpu = read_gpu(written(tmp_path, WHOLE))
    assert gpu.bandwidth == 900e9
    assert gpu.flops == {"bf16": 300e12}
    assert gpu.price_per_hour is None
    assert gpu.efficiency_source == gpu.usable_source == "own.toml (given)"
    assert gpu.link_source.startswith("assumed")
    assert gpu.price_source == "unknown: give --price"
    with pytest.raises(UserError, match="no all-reduce times"):
        gpu.all_reduce(2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name = "x"\nbase = "h100"\nbandwith_gb_s = 9', r"unknown key 'bandwith_gb_s'.*Did you mean 'bandwidth_gb_s'"),
        ('name = "x"\nbase = "h101"', r"unknown base 'h101'.*h100"),
        ('base = "h100"', "name = "),
        ('name = "x"\nbase = ["h100"]', "unknown base"),
        ('name = "x"\nbase = {x = 1}', "unknown base"),
        ('name = "h100"\nbase = "h100"', "built-in"),
        ('name = "x"\nbase = "h100"\nbandwidth_gb_s = 3.35', r"bandwidth_gb_s = 3.35: must be between 50 .* unit"),
        ('name = "x"\nbase = "h100"\ndecode_attention_efficiency = 80', "between 0.01 and 1"),
        ('name = "x"\nbase = "h100"\nusable_gib = "80"', "must be a number"),
        ('name = "x"\nbase = "h100"\n[matmul_efficiency]\nbf16 = 1.2', r"matmul_efficiency.bf16 = 1.2"),
        ('name = "x"\nbase = "h100"\n[matmul_efficiency]\nint4 = 0.5', r"unknown key 'int4'.*bf16"),
        ('name = "x"\nbase = "h100"\n[matmul_efficiency]\nfp8 = 0.95', "fp8 products at twice the speed"),
        ('name = "x"\nbase = "a100-80"\n[dense_tflops]\nfp8 = 600', "same dtypes"),
        ('name = "x"\nbase = "h100"\n[all_reduce_us]\n2 = [[4096, 5], [64, 9]]', "must ascend"),
        ('name = "x"\nbase = "h100"\n[all_reduce_us]\n3 = [[4096, 5]]', "unknown key '3'"),
        ('name = "x"\nbandwidth_gb_s = 900', r"usable_gib, .*dense_tflops, .*missing; give them, or base"),
        ("name = ", "Invalid value"),
    ],
)
def test_files_that_cannot_be_are_refused_with_the_key_and_what_is_known(tmp_path, text, reason):
    with pytest.raises(UserError, match=reason) as found:
        read_gpu(written(tmp_path, text))
    assert "\n" not in str(found.value)


def test_a_peak_that_looks_sparse_is_doubted_not_refused(tmp_path, capsys):
    gpu = read_gpu(written(tmp_path, 'name = "x"\nbase = "h100"\n[dense_tflops]\nbf16 = 1979\nfp8 = 3958'))
    assert gpu.flops["bf16"] == 1979e12
    assert "dense, or sparse?" in capsys.readouterr().err


def test_names_come_from_the_files_of_the_environment(tmp_path, monkeypatch):
    written(tmp_path, WHOLE, "a.toml")
    other = written(tmp_path, 'name = "Other"\nbase = "l4"', "b.toml")
    monkeypatch.setenv("KVMILL_GPUS", str(tmp_path))
    assert find_gpu("OTHER").bandwidth == GPUS["l4"].bandwidth
    with pytest.raises(UserError, match=r"unknown GPU 'none'.*other, own"):
        find_gpu("none")
    monkeypatch.setenv("KVMILL_GPUS", f"{other}:{other}")
    with pytest.raises(UserError, match="two files define the GPU other"):
        find_gpu("other")
    assert find_gpu(str(other)).name == "other", "a path needs no environment"


def test_a_calibration_is_laid_over_its_own_part_only_and_sets_no_price(tmp_path):
    text = 'name = "h100-calibrated"\nbase = "h100"\nhost_step_ms = 0.5\nerror = 0.06\nprice_per_hour_usd = 1.0\n'
    path = written(tmp_path, text + "[calibration]\nn_fit = 43\n")
    gpu = find_gpu("h100", calibration=path)
    assert (gpu.name, gpu.host_step_s, gpu.step_error) == ("h100", 0.5e-3, 0.06)
    assert gpu.price_per_hour == GPUS["h100"].price_per_hour
    assert read_calibration(path).facts == {"n_fit": 43}
    with pytest.raises(UserError, match="it is of h100, not of h200"):
        find_gpu("h200", calibration=path)


@pytest.mark.parametrize("name", sorted(GPUS))
def test_what_is_written_is_read_back_as_it_was(tmp_path, name):
    from dataclasses import replace

    base = GPUS[name]
    made = replace(
        base,
        name="copy",
        usable_gib=12.5,
        matmul={dtype: share * 0.9 for dtype, share in base.matmul.items()},
        all_reduce_s={**base.all_reduce_s, 2: ((1024.0, 2e-6), (2048.0, 3.5e-6))},
        price_per_hour=1.25,
        price_source='a "quoted" source',
        step_error=0.05,
    )
    read = read_gpu(written(tmp_path, gpu_toml(made, base, {"n_fit": 3, "tables": ["a sha256:b"]})))
    assert read.matmul == pytest.approx(made.matmul)
    assert read.price_source == made.price_source
    assert (read.usable_gib, read.step_error, read.price_per_hour) == (12.5, 0.05, 1.25)
    assert [[pytest.approx(p) for p in made.all_reduce(2)]] == [list(read.all_reduce(2))]
    assert replace(read, matmul=base.matmul, all_reduce_s=base.all_reduce_s) == replace(
        made, matmul=base.matmul, all_reduce_s=base.all_reduce_s
    )


def test_every_key_of_the_form_can_be_written():
    assert {"name", "base", "overlap", "layer_us", "all_reduce_us", "calibration"} <= set(KEYS)
