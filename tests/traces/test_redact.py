"""Redaction finds what it says, keeps shapes, and leaves alone what only looks alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvmill.traces import samples
from kvmill.traces.readers import tau_bench
from kvmill.traces.record import dump, tool_call
from kvmill.traces.redact import KINDS, Redactor
from kvmill.traces.trajectory import Message, Trajectory, Turn

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc123+/==\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SECRETS = {
    "private_key": [PEM],
    "jwt": [JWT],
    "api_key": [
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1" * 18,
        "xoxb-123456789012-abcdefABCDEF",
        "hf_" + "aB" * 16,
        "AIza" + "x" * 35,
    ],
    "password": ["root:hunter2@"],
    "email": ["john.doe+x@acme.co.uk", "o_brien99@mail.acme.io"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
    "ssn": ["123-45-6789"],
    "phone": ["(415) 262-2671", "415-262-2671", "+1 415 262 2671", "+49 30 901820", "+442079460958"],
    "ipv6": ["2a00:1450:4001:82b::200e", "fe80::1ff:fe23:4567:890a"],
    "ipv4": ["8.8.8.8", "10.20.30.40"],
    "home_path": ["/home/alice", "/Users/bob.smith", "C:\\Users\\carl", "C:\\\\Users\\\\carl"],
}
HARMLESS = [
    "born 1990-04-05, flight HAT136 on 2024-05-20 at 2024-05-15T15:00:00 for $1,250.30",
    "certificate_7504069 credit_card_4421486 order #W2378156 item 8124970213 reservation 4WQ150",
    "4111 1111 1111 1112 and 1234567890123456 are no cards, 1700000000123 ms is a time",
    "DE88 3704 0044 0532 0130 00 has a wrong check digit",
    "mia.li3818@example.com, admin@localhost, git@test",
    "127.0.0.1:8080 0.0.0.0 ::1 v1.2.3.4 1.2.3.4.5 999.1.1.1 203.0.113.9 2001:db8::1",
    "std::vector a::b x[::2] 12:30:45 10:20:30:40:50:60",
    "/home/ /home/ubuntu/x /usr/home_of/x",
    "https://host:8080/a@b sk-short task-abcdefghijklmnopqrstuvwxyz",
    "555-123-4567 and 000-12-3456 and 12-345-6789",
]


def shape(text: str) -> str:
    return re.sub("[a-z]", "a", re.sub("[A-Z]", "A", re.sub("[0-9]", "0", text)))


def test_every_kind_is_tested() -> None:
    assert set(SECRETS) == {kind.name for kind in KINDS}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in SECRETS.items() for value in values])
def test_found_replaced_counted_and_the_text_around_it_untouched(kind: str, value: str) -> None:
    before = "see postgres://" if kind == "password" else "see "
    redactor = Redactor()
    out = redactor.text(f"{before}{value} and go on.")
    assert out.startswith(before)
    assert out.endswith(" and go on.")
    assert value not in out
    assert dict(redactor.counts) == {kind: 1}
    if kind not in ("email", "ipv4", "ipv6", "home_path"):
        assert shape(out) == shape(f"{before}{value} and go on.")


@pytest.mark.parametrize("kind", ["email", "iban", "card", "ssn", "phone", "ipv4", "ipv6", "home_path"])
def test_stand_ins_are_left_alone_when_met_again(kind: str) -> None:
    for value in SECRETS[kind]:
        once = Redactor().text(value)
        again = Redactor()
        assert again.text(once) == once
        assert not again.counts


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_alike_stays(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == text
    assert not redactor.counts


def test_the_same_value_gets_the_same_stand_in_everywhere_and_another_value_another() -> None:
    one, other = Redactor(), Redactor()
    assert one.text("ask ann@corp.io") == other.text("ask ann@corp.io")
    assert one.text("ANN@corp.io").lower() == one.text("ann@corp.io")
    assert one.text("ann@corp.io") != one.text("bob@corp.io")
    assert one.text("/home/ann/a and /home/ann/b").count(one.text("/home/ann")) == 2


def test_arguments_stay_json_and_meaning_moves_along() -> None:
    arguments = json.dumps({"to": "ann@corp.io", "key": PEM, "path": "C:\\Users\\ann\\x", "n": 1.0})
    call = tool_call("c1", "send", arguments)
    redacted = Redactor().trajectory(
        Trajectory(
            "t",
            "s",
            "f",
            (Message("user", "Write to ann@corp.io"),),
            (Turn(Message("assistant", "", (call,), reasoning="ann@corp.io it is"), (Message("tool", "sent"),)),),
        )
    )
    said = redacted.turns[0].assistant
    stand_in = redacted.prefix[0].content.removeprefix("Write to ")
    assert said.tool_calls[0].parsed is not None
    assert said.tool_calls[0].parsed["to"] == stand_in
    assert said.reasoning == f"{stand_in} it is"
    assert "ann" not in dump(redacted)
    assert "MIIE" not in dump(redacted)


def test_samples_hold_nothing_to_redact() -> None:
    redactor = Redactor()
    for run in samples.load():
        assert redactor.trajectory(run) == run
    assert not redactor.counts


def test_real_airline_runs_lose_one_address_and_no_date_order_or_price(shared_data: Path) -> None:
    redactor = Redactor()
    changed = []
    for raw in json.loads((shared_data / "traces/tau-bench/gpt-4o-airline.trial0.json").read_text()):
        run = tau_bench.read(raw)
        before, after = dump(run).split(), dump(redactor.trajectory(run)).split()
        assert len(before) == len(after)
        changed += [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    # A customer who types an address at a real mail provider; those at example.com are nobody's and stay.
    assert dict(redactor.counts) == {"email": 1}
    assert [a.rpartition("@")[2][:9] for a, _ in changed] == ["gmail.com"]
    assert "@example.com" in changed[0][1]
