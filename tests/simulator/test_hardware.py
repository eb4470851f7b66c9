import pytest

from kvmill.errors import UserError
from kvmill.simulator.gpus import GPUS
from kvmill.simulator.hardware import find_gpu, gpu_rows

LABELS = {  # what the box says, in GB
    "a100-40": 40, "a100-80": 80, "h100": 80, "h200": 141, "b200": 192, "mi300x": 192, "l40s": 48, "l4": 24, "a10g": 24,
    "rtx-4090": 24, "rtx-pro-6000": 96,
}  # fmt: skip
DENSE = {  # bf16 TFLOPS, half of what data sheets print with sparsity
    "a100-80": 312, "h100": 989, "h200": 989, "b200": 2250, "mi300x": 1307, "l40s": 362, "l4": 121, "a10g": 70,
    "rtx-4090": 165.2, "rtx-pro-6000": 503.8,
}  # fmt: skip


def test_the_catalogue_holds_every_part_that_is_promised():
    assert set(GPUS) == set(LABELS)


@pytest.mark.parametrize("name", sorted(LABELS))
def test_usable_memory_is_below_the_label_and_not_much(name):
    assert 0.9 * LABELS[name] < GPUS[name].usable_gib < LABELS[name]


def test_peaks_are_dense():
    assert {name: GPUS[name].flops["bf16"] / 1e12 for name in DENSE} == DENSE


def test_shares_are_shares_and_every_dtype_has_all_of_them():
    for gpu in GPUS.values():
        assert gpu.flops.keys() == gpu.matmul.keys() == gpu.streaming.keys()
        assert gpu.flops.keys() <= gpu.overlap.keys() & gpu.matmul_floor_s.keys()
        shares = [*gpu.matmul.values(), *gpu.streaming.values(), gpu.decode_attention, gpu.prefill_attention]
        assert all(0 < share <= 1 for share in shares), gpu.name
        for points in gpu.all_reduce_s.values():
            assert [size for size, _ in points] == sorted(size for size, _ in points)


def test_what_was_not_measured_on_a_part_says_so():
    labels = ("measured", "estimated", "assumed")
    for row in gpu_rows():
        for key in ("usable_source", "efficiency_source", "all_reduce_source", "link_source"):
            assert row[key].startswith(labels), (row["gpu"], key)
    assert GPUS["mi300x"].efficiency_source.startswith("assumed")
    assert GPUS["h100"].efficiency_source.startswith("measured")


def test_a_price_is_dated_or_unknown():
    for gpu in GPUS.values():
        assert ("2026" in gpu.price_source) == (gpu.price_per_hour is not None), gpu.name
    assert GPUS["rtx-4090"].priced(0.5).price_source == "--price"


def test_no_name_is_an_alias_and_case_does_not_matter():
    assert find_gpu(" H100 ").name == "h100"
    for name in ("a100", "h100-pcie", "a10", "4090", "gb200"):
        with pytest.raises(UserError, match=rf"unknown GPU '{name}'.*l40s"):
            find_gpu(name)


def test_the_host_link_is_slower_than_anything_on_the_card():
    for gpu in GPUS.values():
        assert 10e9 < gpu.link_bandwidth < 0.3 * gpu.bandwidth
