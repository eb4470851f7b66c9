import pytest

from kvmill.errors import UserError
from kvmill.simulator.given import given, tp_of
from kvmill.traces.store import Store

NAMED = ("long-agents", "llama-3.1-8b", "h100")


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path)


def test_flags_reach_the_load_the_machine_and_the_fleet(store):
    found = given(
        *NAMED, store=store, agents=20, tp=2, retention="ttl:30", token_budget=4096, max_model_len=60_000,
        router="round-robin", fail=5.0, price=1.5, kv_dtype="fp8",
    )  # fmt: skip
    place = found.deployment()
    assert (found.load.agents, place.tp, place.ttl_s, place.token_budget) == (20, 2, 30.0, 4096)
    assert (place.geometry.max_positions, place.kv_dtype, place.gpu.price_per_hour) == (60_000, "fp8", 1.5)
    assert (found.fleet["router"], found.fleet["failure"].outage_s) == ("round-robin", 5.0)


def test_what_is_not_given_stays_as_it_is(store):
    found = given(*NAMED, store=store, agents=None, host_gib=None)
    assert (found.load.agents, found.replica, found.fleet["failure"]) == (400, {}, None)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"retentoin": "lru"}, "unknown option 'retentoin'.*Did you mean 'retention'"),
        ({"max_model_len": 1 << 20}, "--max-model-len 1,048,576: llama-3.1-8b takes 1 to 131,072 tokens"),
        ({"max_model_len": 0}, "takes 1 to"),
        ({"router": "magic"}, "unknown router 'magic'"),
        ({"host_gib": 64.0}, "nothing is put there without --retention offload"),
        ({"host_gib": 64.0, "retention": "ttl:30"}, "--host-gib"),
        ({"fail": 0.0}, "--fail"),
        ({"seed": -1}, "--seed -1: a whole number from 0"),
        ({"seed": 1 << 63}, "to 1,000,000,000,000,000"),
        ({"calibration": "nowhere.toml"}, "No such file"),
    ],
)
def test_what_cannot_be_is_one_line(store, flags, reason):
    with pytest.raises(UserError, match=reason):
        given(*NAMED, store=store, **flags)


def test_a_tensor_parallel_size_is_a_number_or_auto():
    assert (tp_of("auto"), tp_of("4")) == (None, 4)
    with pytest.raises(UserError, match="--tp 'x'"):
        tp_of("x")
