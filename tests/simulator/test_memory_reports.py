import pytest

from kvmill.simulator.memory_reports import REPORTS, measured_peaks, ruled_peaks


def test_every_report_is_met_to_its_rounding_with_its_own_activation_peak():
    checks = list(measured_peaks())
    assert len(checks) == len(REPORTS) == 8
    for name, value, truth, limit in checks:
        assert value == pytest.approx(truth, abs=limit), name


def test_the_rule_for_activation_peaks_meets_every_report_too():
    for name, value, truth, limit in ruled_peaks():
        assert value == pytest.approx(truth, abs=limit), name
