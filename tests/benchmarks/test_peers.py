"""The comparison with other people's code: what counts as equal, as a tie, as a difference, and what is told of it."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import save_tiny

from kvmill.benchmarks import peers
from kvmill.benchmarks.pages.peers import compared, lines, section, totals
from kvmill.errors import UserError
from kvmill.replay.model import load_model
from kvmill.replay.selecting import select


def masks(*heads: str) -> Any:
    """One layer; a letter x is a kept token."""
    return np.array([[[letter == "x" for letter in head] for head in heads]])


SCORES = np.array([[[4, 3, 2, 2, 1], [4, 3, 2, 1, 0], [5, 4, 3, 2, 1]]], dtype=np.float32)


def test_heads_are_equal_token_by_token_and_ties_are_told_from_differences() -> None:
    theirs, mine = masks("xxx..", "xxx..", "xxx.."), masks("xx.x.", "xx..x", "xxx..")
    found = compared(mine, theirs, SCORES)
    assert (found["heads"], found["equal"], found["kept"]) == (3, 1, [9, 9])
    tied, other = found["differing"]
    assert tied == {"layer": 0, "head": 0, "tokens": 2, "gap": 0.0, "tie": True}
    # The boundary is the score 2; the token taken instead of it has 0.
    assert other == {"layer": 0, "head": 1, "tokens": 2, "gap": 1.0, "tie": False}


def test_together_the_boundary_is_the_lowest_score_kept_anywhere() -> None:
    theirs, mine = masks("xxx..", "x....", "xxx.."), masks("xxx..", "xx...", "xx...")
    (second, third) = compared(mine, theirs, SCORES, together=True)["differing"]
    assert (second["gap"], third["gap"]) == (0.5, 0.5)  # scores 3 against the boundary 2
    (second, third) = compared(mine, theirs, SCORES)["differing"]
    assert (second["gap"], third["gap"]) == (0.25, 0.0)


def test_negative_scores_have_positive_gaps_and_shapes_must_agree() -> None:
    found = compared(masks("x.x"), masks("xx."), np.array([[[-1, -2, -3]]], dtype=np.float32))
    assert found["differing"][0]["gap"] == 0.5
    with pytest.raises(ValueError, match="shapes differ"):
        compared(masks("x.x"), masks("xx"), np.zeros((1, 1, 3), dtype=np.float32))


def cell(policy: str, equal: int, differing: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    what = {"policy": policy, "trajectory": "t", "tokens": 300, "compared": 300, "keep": "0.2", "kept": [5400, 5400]}
    return {**what, "heads": 90, "equal": equal, "differing": differing, **more}


def head(gap: float, number: int = 0) -> dict[str, Any]:
    return {"layer": number, "head": 1, "tokens": 2, "gap": gap, "tie": gap == 0}


def told(*cells: dict[str, Any]) -> str:
    versions = {"kvmill": {}, "kvpress": {"kvpress": "0.5.4", "transformers": "5.2.0", "torch": "2.9.1"}}
    return section({"model": "smollm2-135m", "dtype": "float32", "versions": versions, "cells": cells})


def test_what_is_printed_lists_every_head_that_is_no_tie() -> None:
    cells = [cell("knorm", 87, [head(0.0), head(2e-7, 4), head(0.0)]), cell("knorm", 90, [], keep="0.5")]
    first, named, second = lines(cells)
    assert (first["equal heads"], first["exact ties"], first["other heads"]) == ("87/90", 2, 1)
    assert named["policy"] == "  layer 4, head 1: 2 tokens differ"
    assert named["largest gap"] == 2e-7
    assert (second["equal heads"], second["largest gap"]) == ("90/90", None)
    assert totals(cells) == [
        {"policy": "knorm", "equal heads": "177/180", "exact ties": 2, "other heads": 1, "largest gap": 2e-7}
    ]


def test_the_page_calls_rounding_rounding_and_a_difference_a_difference() -> None:
    near = told(cell("keydiff", 90, []), cell("knorm", 88, [head(0.0), head(2e-7)]))
    assert "| keydiff | 90/90 | 0 | 0 | – |" in near
    assert "| knorm | 88/90 | 1 | 1 | 2.0e-07 |" in near
    assert "Every head that differs does so at a tie or within rounding (gaps below 0.0001)." in near
    assert "kvpress 0.5.4 (transformers 5.2.0, torch 2.9.1)" in near
    assert "window" not in near
    wrong = told(cell("keydiff", 89, [head(0.02)]), cell("knorm", 88, [head(0.0), head(2e-7)]))
    assert "**Not explained by rounding** (gaps above 0.0001): keydiff (300 tokens, keep 0.2)." in wrong
    assert "within rounding" not in wrong
    assert "Every head keeps the same tokens." in told(cell("keydiff", 90, []))


def test_a_budget_below_the_window_is_explained() -> None:
    ties = [head(0.0, i) for i in range(90)]
    written = told(cell("snapkv", 0, ties), cell("snapkv", 90, [], keep="0.5", kept=[13500, 13500]))
    assert "With 300 tokens at keep 0.2, `snapkv` may keep fewer tokens than its window of 64" in written
    assert "keep 0.5, `snapkv`" not in written


def test_figures_are_json_with_a_line_for_every_cell() -> None:
    found = {"model": "m", "versions": {"kvpress": {"torch": "2"}}, "cells": [cell("knorm", 90, []), cell("x", 1, [])]}
    written = peers.written(found)
    assert json.loads(written) == found
    assert sum('"policy"' in line for line in written.splitlines()) == 2


def test_an_environment_inside_the_repository_or_with_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="outside"):
        peers.environment(str(peers.ROOT / "kvpress-venv"))
    if sys.platform == "win32":
        pytest.skip("the stand-in is a shell script")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 0.5.3\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(UserError, match=r"holds kvpress 0\.5\.3; give one with 0\.5\.4"):
        peers.environment(str(tmp_path))
    python.write_text("#!/bin/sh\necho 0.5.4\n")
    assert peers.environment(str(tmp_path)) == python


def test_every_case_is_compared_with_its_own_answers(tmp_path: Path) -> None:
    """Answers made with kvmill's own selection are equal everywhere, and one changed head is found."""
    model = load_model(str(save_tiny(tmp_path / "model")), dtype="float32", threads=1)
    ids, start = [(7 * i) % 90 for i in range(40)], 9
    noise = np.random.default_rng(0).random((3, 2, 40), dtype=np.float32)

    def kept(policy: str, begin: int = 0) -> Any:
        chosen = select(model, ids, policy, [("prefix", begin), ("assistant", 40 - begin)] if begin else None)
        mask = np.zeros((3, 2, 40), dtype=bool)
        for layer, heads in chosen.items():
            for number, rows in enumerate(heads):
                mask[layer, number, rows] = True
        return mask[:, :, begin:]

    names = {f"kept_{i}": f"knorm(keep={keep})" for i, keep in enumerate(peers.KEEPS)}
    answers = {name: kept(policy) for name, policy in names.items()}
    answers["kept_1"][2, 1] = ~answers["kept_1"][2, 1]
    np.savez(tmp_path / "knorm-0", scores=noise, **answers)
    for form, begin in (("opened", start), ("whole", 0)):
        arrays = {
            f"{name}_{i}": kept(f"kvzip(keep={keep},scope={scope})", begin)
            for name, scope in (("each", "uniform"), ("kept", "global"))
            for i, keep in enumerate(peers.KEEPS)
        }
        np.savez(tmp_path / f"kvzip-{form}-0", scores=noise[:, :, begin:], start=np.array(start), **arrays)
    found = list(peers.cells(model, [{"trajectory": "t", "ids": ids}], ["knorm", "kvzip"], tmp_path))
    assert [(c["policy"], c["compared"], c["keep"], c["equal"]) for c in found] == [
        ("knorm", 40, "0.2", 6),
        ("knorm", 40, "0.5", 5),
        *[(f"kvzip, {s}", n, k, 6) for n in (31, 40) for s in ("uniform", "global") for k in peers.KEEPS],
    ]
    assert [(d["layer"], d["head"]) for d in found[1]["differing"]] == [(2, 1)]


def test_a_failing_child_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"no module named kvpress$"):
        peers._run([sys.executable, "-c", "import sys; print('begun'); sys.exit('first\\nno module named kvpress')"])
    assert "begun" in capsys.readouterr().err
