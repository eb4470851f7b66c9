from dataclasses import replace

import pytest
from worlds import TE, closed, deployment, scenario

from kvmill.replay.profile import PolicyProfile
from kvmill.simulator.assumptions import assumed_together, assumptions, retention_words


def test_every_choice_about_the_fleet_is_listed():
    place = deployment(
        retention="offload", host_gib=64.0, preemption="swap", compaction="beside", coarse_tokens=512,
        token_budget=2048, max_sequences=64,
    )  # fmt: skip
    world = replace(scenario(closed(4), "full", place), router="round-robin", keep_measured=0.3)
    found = assumptions(world, PolicyProfile("full"))
    assert "64 GiB of host memory per GPU (assumed)" in found["retention"]
    assert "copied to the host and back" in found["preemption"]
    assert found["compaction"].startswith("beside the batch")
    assert found["batching"] == "2,048 tokens per step, 64 sequences at once"
    assert (found["router"], found["coarse_tokens"][-10:]) == ("round-robin", "512 tokens")
    assert found["kept"].startswith("30.0% of the tokens")


@pytest.mark.parametrize(
    ("retention", "said"),
    [("lru", "no offload to host memory (assumed)"), ("ttl:30", "for 30 s at most"), ("offload", "is loaded again at")],
)
def test_retention_is_said_in_words(retention, said):
    assert said in retention_words(deployment(retention=retention))


def test_the_models_error_says_where_it_is_from():
    found = assumptions(scenario(closed(4)), PolicyProfile("full"))
    assert found["model_error"].startswith("±9.5% (measured")
    assert "assumed" in found["host_time_s"]


def test_what_differs_between_policies_is_said_of_each_and_the_rest_once():
    measured = PolicyProfile(TE, extra_turns=0.12, extra_turns_source="closed-loop run r: +12% turns")
    known = {"full": PolicyProfile("full"), TE: measured, "random(keep=0.5)": PolicyProfile("random(keep=0.5)")}
    found = assumed_together([scenario(closed(4), policy) for policy in known], known)
    assert found["extra_turns"] == [
        "full: none by definition: full is the reference",
        f"{TE}: closed-loop run r: +12% turns",
        "random(keep=0.5): assumed none: no closed-loop run",
    ]
    assert isinstance(found["router"], str), "alike for all"
    adaptive = replace(scenario(closed(4), TE), keep_measured=0.25)
    found = assumed_together([scenario(closed(4)), adaptive], known)
    (kept,) = found["kept"]
    assert kept.startswith(f"{TE}: 25.0% of the tokens")
