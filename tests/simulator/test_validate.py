from pathlib import Path

import numpy as np
import pytest

from kvmill.simulator.closed_forms import batching_closed, batching_open, birth_death, processor_sharing, single_server
from kvmill.simulator.laws import geometric
from kvmill.simulator.validate import HEAD, absolute, interval, markdown, text, validate


@pytest.fixture(scope="module")
def report():
    return validate(requests=6000)


def test_every_check_passes_and_says_what_it_compared(report):
    failed = [check for check in report["checks"] if not check["passed"]]
    assert report["passed"], failed
    assert {check["kind"] for check in report["checks"]} == {"exact", "interval", "reality"}
    for check in report["checks"]:
        assert set(check) == {"name", "kind", "value", "truth", "error", "limit", "passed"}
        assert (check["error"] <= check["limit"]) == check["passed"]
    assert text(report).startswith(f"{len(report['checks'])} checks, all passed")


def test_the_identities_cover_what_the_design_lists(report):
    names = " | ".join(check["name"] for check in report["checks"] if check["kind"] == "exact")
    for part in ("lone request", "jumped ≡ stepped", "≡ full", "blocks lost", "Little's law", "overload × 50"):
        assert part in names


def test_a_wrong_value_fails_and_fails_the_report():
    assert not absolute("x", "exact", 1.0, 1.1).passed
    assert not interval("x", np.random.default_rng(0).normal(1.2, 0.1, 3000), 1.0).passed
    assert interval("x", np.random.default_rng(0).normal(1.0, 0.1, 3000), 1.0).passed


def test_the_birth_death_chain_gives_the_published_figures():
    assert batching_open(2.0, 0.010, 0.0002, 200, 16) == pytest.approx(2.21740, abs=1e-4)
    assert batching_open(4.0, 0.010, 0.0002, 200, 16) == pytest.approx(2.45623, abs=1e-4)
    assert batching_open(5.5, 0.010, 0.0002, 200, 16) == pytest.approx(3.62623, abs=1e-4)
    expected = {8: 0.661800, 16: 1.317339, 32: 2.608275, 64: 5.050015}
    for agents, rate in expected.items():
        assert batching_closed(agents, 10.0, 0.010, 0.0002, 200, 16) == pytest.approx(rate, abs=1e-5)


def test_single_queues_give_the_textbook_figures():
    number, flow = birth_death(lambda n: 0.8, lambda n: 1.0, most=500)
    assert (number, flow) == pytest.approx((4.0, 0.8))
    assert single_server(0.8, 1.0, 1.0) == pytest.approx(5.0)
    assert single_server(0.7, 1.0, 4.0) == pytest.approx(1 + 5.83333, abs=1e-4)
    assert processor_sharing(0.5, 2.0 / 2) == pytest.approx(2.0)


def test_geometric_quantiles_have_the_mean_and_spread_of_the_law():
    values = np.array(geometric(200.0, 4000), dtype=float)
    assert values.mean() == pytest.approx(200, rel=0.003)
    assert values.std() == pytest.approx(199.5, rel=0.01)
    assert values.min() == 1


def test_the_page_in_the_documentation_lists_these_checks(report):
    page = (Path(__file__).parents[2] / "docs" / "validation.md").read_text(encoding="utf-8")
    assert page.startswith(HEAD)
    assert "all passed" in page
    assert [check["name"] for check in report["checks"] if f"| {check['name']} |" not in page] == []
    assert markdown(report).startswith(HEAD)
