"""Table 2 of the paper from its own inputs: what follows, and what does not."""

from __future__ import annotations

import pytest

from kvmill.simulator.paper import table_checks, table_findings
from kvmill.simulator.paper_table import (
    GEMMA,
    GEMMA_POOL_TOKENS,
    QWEN,
    QWEN_POOL_TOKENS,
    TABLE,
    admissible,
    per_hour,
    pools,
    power_of_two,
    ratio_of_steps,
    served,
    window_rows,
)


@pytest.mark.parametrize(("name", "value", "truth", "limit"), list(table_checks()), ids=str)
def test_what_follows_from_printed_inputs_is_what_is_printed(name, value, truth, limit):
    assert abs(value - truth) <= limit, name


def test_one_batch_of_the_paper_is_not_what_its_inputs_give():
    inputs = {row.method: admissible(QWEN_POOL_TOKENS, row.peak_k * 1e3) for row in QWEN}
    assert inputs == {"none": 11, "AM": 39, "TE": 39}
    assert [row.admissible for row in QWEN] == [11, 39, 38]
    assert {name for name, value, truth, _ in table_checks() if "fits" in name and value != truth} == {
        "Table 2, qwen3.5-27b TE: batch that fits (its own inputs give 39)"
    }


def test_no_pool_in_tokens_gives_all_batches_of_gemma_unless_windows_count():
    assert admissible(GEMMA_POOL_TOKENS, 272_100) == 1
    low, high = pools(GEMMA)
    assert low > high
    low, high = pools(GEMMA, window_rows())
    assert low < high
    for pool, right in ((low, True), (high - 1, True), (high, False), (low - 1, False)):
        found = [admissible(pool, row.peak_k * 1e3 + window_rows()) for row in GEMMA]
        assert (found == [13, 34, 28]) is right


def test_powers_of_two():
    assert [power_of_two(n) for n in (0, 1, 2, 3, 8, 11, 38, 64)] == [0, 1, 2, 2, 8, 8, 32, 64]


def test_the_printed_rates_imply_the_seconds_of_a_turn():
    for row in TABLE:
        assert per_hour(row.batch, row.turns * row.turn_s) == pytest.approx(row.per_hour)
    assert [round(row.turn_s, 1) for row in QWEN] == [7.4, 4.5, 5.2]


def test_the_printed_ratio_is_more_than_batches_turns_and_step_times_give():
    """Four times the batch at as many rows read takes no shorter steps: the rest would be shorter turns."""
    for row in QWEN[1:]:
        alone = row.batch / QWEN[0].batch * QWEN[0].turns / row.turns
        assert ratio_of_steps(row) < alone < row.ratio


def test_our_pool_for_the_papers_machine_is_near_the_one_it_reports():
    assert served().tokens() == pytest.approx(QWEN_POOL_TOKENS, rel=0.1)


def test_the_findings_name_their_figures():
    said = " ".join(table_findings())
    for figure in ("39.4", "262,144", "1.8", "3.54 M", "3.49 M", "2.6 ×", "0.61"):
        assert figure in said
