from dataclasses import replace

import pytest
from worlds import closed, deployment, scenario

from kvmill.simulator.assumptions import assumptions, retention_words


def test_every_choice_about_the_fleet_is_listed():
    place = deployment(
        retention="offload", host_gib=64.0, preemption="swap", compaction="beside", coarse_tokens=512,
        token_budget=2048, max_sequences=64,
    )  # fmt: skip
    found = assumptions(replace(scenario(closed(4), "full", place), router="round-robin", keep_measured=0.3))
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
    found = assumptions(scenario(closed(4)))
    assert found["model_error"].startswith("±9.5% (measured")
    assert "assumed" in found["host_time_s"]
