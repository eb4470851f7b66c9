"""The parts of `kvmill bench policies` can begin: what is to be held equal can be, on lengths like the samples'."""

from __future__ import annotations

from pathlib import Path

from kvmill.benchmarks.policies import AT_EQUAL_SIZE, EQUAL_BY, REFERENCE, parts
from kvmill.replay.equal import hold_equal, rows_held
from kvmill.replay.policies.registry import parse_policies, parse_policy
from kvmill.simulator.sources import Fill, find_workload
from kvmill.traces.store import Store


def test_every_policy_of_the_equal_part_can_hold_the_references_rows(tmp_path: Path) -> None:
    load = find_workload("samples", Fill(4, None, None, None, None), store=Store.open(tmp_path), seed=0)
    texts = [session.segments for session in load.sessions]
    reference = parse_policy(REFERENCE)
    target = rows_held(reference, texts, EQUAL_BY)
    for policy in hold_equal(parse_policies(AT_EQUAL_SIZE), reference, texts, EQUAL_BY)[1:]:
        assert abs(rows_held(policy, texts, EQUAL_BY) - target) < 0.02 * target, str(policy)


def test_every_part_is_spelled_as_policies_are() -> None:
    """As they are printed: the page looks its rows up by these texts. `full` is always first."""
    for names, _ in parts().values():
        assert [str(policy) for policy in parse_policies(names)] == ["full", *(n for n in names if n != "full")]
