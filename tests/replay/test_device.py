"""Choices of device, dtype and threads."""

from __future__ import annotations

import pytest
import torch

from kvmill.errors import UserError
from kvmill.replay import device


@pytest.mark.parametrize(
    ("features", "float32_s", "expected"),
    [
        ({"avx2", "amx_bf16"}, 1.0, torch.bfloat16),
        ({"avx2"}, 9.0, torch.float32),
        ({"avx512_bf16"}, 2.0, torch.bfloat16),
        ({"avx512_bf16"}, 1.1, torch.float32),
    ],
)
def test_auto_takes_bfloat16_on_a_cpu_only_where_it_is_faster(
    features: set[str], float32_s: float, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "cpu_features", lambda: frozenset(features))
    monkeypatch.setattr(device, "_seconds", lambda dtype: float32_s if dtype == torch.float32 else 1.0)
    device.cpu_prefers_bfloat16.cache_clear()
    try:
        assert device.choose_dtype("auto", torch.device("cpu")) == expected
    finally:
        device.cpu_prefers_bfloat16.cache_clear()
    assert device.choose_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_the_measurement_leaves_the_thread_count_alone() -> None:
    before = torch.get_num_threads()
    device.cpu_prefers_bfloat16.__wrapped__()
    assert torch.get_num_threads() == before


def test_threads_are_as_asked_then_the_environment_then_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert device.choose_threads(2) == 2
    assert device.choose_threads(None) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 64)
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert device.choose_threads(None) == 3  # never more than this process may use
    with pytest.raises(UserError, match="at least 1"):
        device.choose_threads(0)


def test_devices_that_are_not_there_are_named() -> None:
    assert device.choose_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        device.choose_device("gpu")
    with pytest.raises(UserError, match="unknown device 'meta'"):
        device.choose_device("meta")
    with pytest.raises(UserError, match=r"device cuda:99: this torch .* sees"):
        device.choose_device("cuda:99")
