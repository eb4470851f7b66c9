"""The benchmark of the kernels: what a wrong kernel looks like, when a speed-up is shown, which target is met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvmill.benchmarks import kernel_cases, kernel_rows, kernels
from kvmill.benchmarks.kernel_cases import Case, Draw, deviation, poisoned
from kvmill.benchmarks.kernel_contests import BUILD, contests
from kvmill.benchmarks.kernel_problems import PROBLEMS, cases
from kvmill.benchmarks.pages.kernels import page
from kvmill.benchmarks.roofline import Roofline
from kvmill.benchmarks.verified import verified
from kvmill.errors import UserError

CPU = torch.device("cpu")


def test_a_deviation_is_relative_to_what_the_dtype_allows() -> None:
    truth = torch.tensor([4.0, -1.0, float("-inf")], dtype=torch.float64)
    exact = torch.tensor([4.0, -1.0, float("-inf")])
    assert deviation(exact, truth, 1e-5) == 0
    assert deviation(exact + torch.tensor([0, 4e-5, 0]), truth, 1e-5) == pytest.approx(1, rel=0.01)
    assert deviation(exact + torch.tensor([0, float("nan"), 0]), truth, 1e-5) == float("inf")
    assert deviation(exact.clamp_min(-9), truth, 1e-5) == float("inf")
    assert deviation(exact[:2], truth, 1e-5) == float("inf")
    next_up = torch.tensor([1.0, 2.0], dtype=torch.bfloat16) * (1 + 2**-7)
    assert 0.9 < deviation(next_up, torch.tensor([1.0, 2.0]).double(), 1e-5) <= 1
    assert deviation(torch.tensor([1, 2]), torch.tensor([1, 3]), 1e-5) == float("inf")


@pytest.mark.parametrize("op", PROBLEMS)
def test_a_result_that_is_not_written_or_slightly_off_is_wrong(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation's problems look at every part of the answer: each output is spoiled in turn."""
    case = next(iter(cases(op, full=False)))
    right = case.truth(CPU)
    for spoiled in range(len(right)):

        def spoil(self: Case, impl: str, device: torch.device, at: int = spoiled) -> list[torch.Tensor]:
            out = [x.clone() for x in right]
            flat = out[at].view(-1)
            flat[-1] = ~flat[-1] if flat.dtype == torch.bool else flat[-1] + 1
            return out

        with monkeypatch.context() as patch:
            patch.setattr(Case, "answer", spoil)
            assert case.error("torch", CPU) > 1


def test_unwritten_memory_is_seen_and_torch_is_as_it_was_afterwards() -> None:
    before = torch.empty
    with poisoned():
        assert torch.empty(3).isnan().all()
        assert torch.ones(2).new_empty(2).isnan().all()
        assert torch.empty_like(torch.ones(2, dtype=torch.int32)).eq(2**31 - 1).all()
    assert torch.empty is before


def test_the_reference_sees_the_rounded_inputs() -> None:
    narrow, wide = (Draw(3, torch.bfloat16, CPU, wide=w).normal(4, 5) for w in (False, True))
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float64)
    assert torch.equal(narrow.double(), wide)


def test_all_shapes_dtypes_and_group_sizes_of_the_issue_are_among_the_cases() -> None:
    labels = [case.label for case in cases("decode_attention")]
    for n in (63, 129, 1000):
        for dim in (64, 80, 128, 256, 512):
            for dtype in ("float32", "float16", "bfloat16"):
                assert any(label.startswith(f"n {n}, D {dim},") and label.endswith(dtype) for label in labels)
    for group in (1, 3, 8):
        for dtype in ("float32", "float16", "bfloat16"):
            assert any(f" G {group}," in label and label.endswith(dtype) for label in labels)
    assert set(PROBLEMS) == set(kernel_cases.MODULES)


@pytest.mark.parametrize("op", BUILD)
def test_every_rival_computes_the_same(op: str) -> None:
    """The compared forms are other ways to one answer, not easier questions."""
    contest = next(contests(op, CPU, size="toy"))
    rivals = {n: f for n, f in contest.forms.items() if n not in ("compiled", "copy", "kvmill triton")}
    answers = {}
    for name, form in rivals.items():
        args, options = contest.inputs(0)
        found = form(*args, **options)
        answers[name] = _flat(args[:2] if op == "compact_blocks" else found)  # which moves in place
    truth = answers["naive"]
    for name, found in answers.items():
        width = min(len(found), len(truth))
        assert width > 0, name
        for x, y in zip(found[:width], truth[:width], strict=True):
            torch.testing.assert_close(x.reshape(y.shape), y, rtol=2e-3, atol=2e-3, msg=f"{op}: {name}")


def _flat(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return list(found) if found.dim() == 4 else [found]
    return [x for part in found if part is not None for x in _flat(part)]


def row(op: str, provider: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    what = {"op": op, "provider": provider, "shape": "n=9", "dtype": "float32", "target_shape": True, "note": None}
    rates = {"gb_per_s": 2.0, "tflop_per_s": 1.0, "roofline_share": 0.5, "disturbed": False}
    return {**what, "seconds": seconds, **rates, **more}


def test_a_speed_up_needs_passing_tests_and_a_quiet_machine() -> None:
    rows = [row("x", "naive", 6.0), row("x", "torch", 3.0), row("x", "compiled", None), row("x", "kvmill torch", 2.0)]
    good = kernel_rows.with_speedups(rows, {"x": None})[-1]
    assert (good["verified"], good["speedup_naive"], good["speedup_torch"]) == (True, 3.0, 1.5)
    for wrong in ({"x": "test_a fails"}, {}):
        bad = kernel_rows.with_speedups(rows, wrong)[-1]
        assert (bad["verified"], bad["speedup_naive"], bad["speedup_torch"]) == (False, None, None)
        assert bad["note"] == "not verified, so no speed-up"
    rows[-1]["disturbed"] = True
    assert kernel_rows.with_speedups(rows, {"x": None})[-1]["speedup_naive"] is None


def test_targets_compare_with_rivals_on_a_cpu_and_with_the_roofline_on_a_gpu() -> None:
    roofline = Roofline(4e9, {"float32": 4e12})
    rows = [row("attention_mass", "naive", 5.0), row("attention_mass", "kvmill torch", 2.0)]
    rows += [row("compact_kv", "copy", 1.0), row("compact_kv", "kvmill torch", 2.0)]
    good = kernel_rows.with_speedups(rows, {"attention_mass": None, "compact_kv": None})
    found = kernel_rows.targets(good, roofline, "cpu")
    assert [(aim["op"], aim["value"], aim["met"]) for aim in found] == [
        ("attention_mass", 2.5, True),
        ("decode_attention", None, None),
        ("compact_kv", 0.5, False),
    ]
    unverified = kernel_rows.targets(kernel_rows.with_speedups(rows, {}), roofline, "cpu")
    assert [aim["value"] for aim in unverified] == [None] * 3
    rows = [row("compact_kv", "kvmill triton", 1.0, shape=s, gb_per_s=g) for s, g in (("a", 3.0), ("b", 2.0))]
    found = kernel_rows.targets(kernel_rows.with_speedups(rows, {"compact_kv": None}), roofline, "cuda")
    assert next(aim["value"] for aim in found if aim["op"] == "compact_kv") == 0.5  # the worst shape counts


def test_an_operation_is_verified_by_its_own_tests(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "kernels"
    folder.mkdir(parents=True)
    (tmp_path / "kernels").mkdir()
    (folder / "test_mass.py").write_text("def test_good(): pass\ndef test_triton(): assert 0\n")
    (folder / "test_topk_impls.py").write_text("def test_good(): pass\ndef test_ties(): assert 0\n")
    (folder / "test_gpu_mass.py").write_text("def test_more(): assert 0\n")
    ops = ("attention_mass", "pool_topk", "rotate_keys")
    found = verified(ops, "cpu", root=tmp_path)
    assert found["attention_mass"] is None  # the Triton form is not timed on a CPU
    assert found["pool_topk"] == "test_ties fails"
    assert "come with a checkout" in str(found["rotate_keys"])
    (folder / "test_topk_impls.py").write_text("def test_good(): pass\n")
    assert verified(ops, "cpu", root=tmp_path)["pool_topk"] is None
    assert verified(("pool_topk",), "cpu", quick=True, root=tmp_path) == {"pool_topk": None}
    assert verified(("attention_mass",), "cuda", root=tmp_path) == {"attention_mass": "test_more fails"}


def test_a_busy_machine_is_refused_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "other_cores", lambda _=0.5: 1.5)
    with pytest.raises(UserError, match=r"other processes use 1\.5 cores.*--force"):
        kernels.figures(["pool_topk"], CPU, size="toy", verify=False)
    found = kernels.figures(["pool_topk"], CPU, size="toy", verify=False, force=True)
    assert found["forced"] is True
    assert all(r["disturbed"] and r["other_cores"] == 1.5 for r in found["rows"])


def test_an_operation_nobody_knows_is_refused_with_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["kvmill bench kernels", "--op", "atention_mass"])
    with pytest.raises(UserError, match=r"Did you mean 'attention_mass'\? Known: attention_mass, compact_blocks"):
        kernels.main()


def test_figures_say_what_they_were_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "other_cores", lambda _=0.5: 0.0)
    found = kernels.figures(["attention_mass"], CPU, size="toy", verify=False)
    assert {r["provider"] for r in found["rows"]} >= {"naive", "torch", "kvmill torch"}
    for r in found["rows"]:
        assert {"op", "shape", "dtype", "device_name", "threads", "versions", "date", "seconds"} <= set(r)
        assert r["speedup_naive"] is None
        if r["seconds"] is not None:
            assert r["seconds_p20"] <= r["seconds"] <= r["seconds_p80"]
            assert r["roofline_share"] > 0
    assert set(found["roofline"]["tflop_per_s"]) == {"float32", "bfloat16"}
    assert json.loads(kernels.written(found))["targets"] == found["targets"]
    assert "attention_mass: target 2" in kernels.text(found)
    written = page(found)
    assert "| `attention_mass` | H=2 R=16 n=48 D=64 float32 | torch |" in written
    assert "Nothing is claimed" in written


def test_the_page_is_made_from_the_figures() -> None:
    if not kernels.FIGURES.is_file():
        pytest.skip("no figures were written yet")
    gpu = json.loads(kernels.ON_GPU.read_text()) if kernels.ON_GPU.is_file() else None
    assert kernels.PAGE.read_text() == page(json.loads(kernels.FIGURES.read_text()), gpu)
