import numpy as np
import pytest

from kvmill.errors import UserError
from kvmill.simulator.slo import parse_slo, percentile, words


def test_promises_read_and_print():
    slos = parse_slo(["ttft_p95=2", "tpot_p99=0.05"])
    assert words(slos) == "p95 TTFT ≤ 2 s and p99 TPOT ≤ 50 ms"
    assert [s.key for s in slos] == ["ttft_p95", "tpot_p99"]
    assert parse_slo({"ttft_p95": 2.0, "tpot_p99": 0.05}) == slos
    assert parse_slo("ttft_p95=2") == slos[:1]


@pytest.mark.parametrize(
    "text", ["ttft=2", "ttft_p95", "ttft_p95=-1", "ttft_p95=two", "itl_p95=1", "ttft_p97=1", "ttft_p95=nan"]
)
def test_what_is_no_promise_is_refused_with_the_spelling(text):
    with pytest.raises(UserError, match="metric_pQ=SECONDS"):
        parse_slo([text])


def test_a_promise_is_needed_and_given_once():
    with pytest.raises(UserError, match="give one at least"):
        parse_slo([])
    with pytest.raises(UserError, match="given twice"):
        parse_slo(["ttft_p95=2", "ttft_p95=3"])


def test_a_percentile_of_too_few_values_is_not_a_number():
    values = np.arange(1.0, 1001.0)
    assert percentile(values, 99) == 991.0
    assert percentile(values[:999], 99) is None
    assert percentile(values[:20], 50) is not None
    assert percentile(values[:19], 50) is None
