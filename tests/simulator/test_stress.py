"""Random small fleets: no block is lost, nothing crashes, jumping changes nothing."""

from collections import Counter
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import deployment, scenario, sessions

from kvmill.simulator.run import run_fleet
from kvmill.simulator.workload import Workload

POLICIES = [
    "full",
    "te(proxy=assistant,delay=1,keep=0.2)",
    "te(proxy=boundary,keep=0)",
    "te(proxy=tool,delay=3,keep=0.5)",
    "attention(keep=0.1)",
    "truncate(keep=0.2)",
    "truncate(keep=0.2,prefix=drop)",
    "sink_window(budget=200)",
    "random(keep=0.3,trigger=threshold:1.5)",
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    policy=st.sampled_from(POLICIES),
    pool=st.integers(2_500, 40_000),
    cap=st.sampled_from([1, 3, 256]),
    budget=st.sampled_from([64, 512, 8192]),
    watermark=st.sampled_from([0.0, 0.02]),
    shared=st.sampled_from([0, 512, 1024]),
    agents=st.integers(1, 30),
    replicas=st.integers(1, 3),
    tool=st.sampled_from([5, 300, 1500]),
    out=st.sampled_from([1, 50, 400]),
    model=st.sampled_from(["llama-3.1-8b", "qwen3.5-4b"]),
    seed=st.integers(0, 1000),
)
def test_random_fleets_lose_no_block_and_jumping_changes_nothing(
    policy, pool, cap, budget, watermark, shared, agents, replicas, tool, out, model, seed
):
    place = deployment(pool, model, max_sequences=cap, token_budget=budget, watermark=watermark)
    load = Workload("stress", sessions(10, seed, turns=6, tool=tool, out=out, wait=1.0, shared=shared), agents=agents)
    logs = []
    for jump in (True, False):
        log = []
        run = run_fleet(scenario(load, policy, place, turns=60), replicas, seed, jump=jump, check=True, log=log)
        logs.append([entry[:-1] for entry in log])
        count = Counter(event for event, *_ in log)
        assert count["done"] + count["reject"] > 0, "turns end"
        assert 0 <= count["admit"] - count["done"] - count["preempt"] <= replicas * cap, "what is admitted is running"
        assert run.requests <= count["done"]
        assert run.rejected <= count["reject"]
        assert run.batch_max <= cap
        assert all(earlier[-1] <= later[-1] for earlier, later in pairwise(log)), "time goes on"
    assert logs[0] == logs[1]
