"""Redaction finds what it says, keeps shapes, and leaves alone what only looks alike."""

from __future__ import annotations

import json
import re

import pytest

from kvmill.traces import samples
from kvmill.traces.record import dump, tool_call
from kvmill.traces.redact import KINDS, Redactor
from kvmill.traces.trajectory import Label, Message, Probe, RecordedIds, Trajectory, Turn

KEY = b"of the tests"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc123+/==\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
FOUND = {
    "private_key": [PEM],
    "jwt": [JWT],
    "api_key": ["sk-proj-abcdefghijklmnopqrstuvwx", "AKIAIOSFODNN7EXAMPLE", "ghp_" + "a1" * 18],
    "password": ['"password": "hunter2"', "postgres://root:hunter2@db/x", "DB_PASSWORD=correct4horse"],
    "secret": ["client_secret: 8f14e45fceea167a5a36", "Authorization: Bearer 9a8b7c6d5e4f3g2h1i0j"],
    "email": ["john.doe+x@acme.co.uk", "o_brien99@mail.acme.io", "john%40acme.com", "john\\u0040acme.com"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
    "national_id": ["123-45-6789", "529.982.247-25"],
    "phone": ["(415) 262-2671", "415-262-2671", "+1 415 262 2671", "+49 30 901820", "+442079460958", "tel. 030 901820"],
    "ipv6": ["2a00:1450:4001:82b::200e", "fe80::1ff:fe23:4567:890a"],
    "ipv4": ["8.8.8.8", "10.20.30.40"],
    "mac": ["00:1a:2b:3c:4d:5e", "00-1A-2B-3C-4D-5E"],
    "home_path": ["/home/alice", "/Users/bob.smith", "C:\\Users\\carl", "C:\\\\Users\\\\carl", "\\/home\\/alice"],
    "name": ['"first_name": "Alice"', '{"name": "Bob Smith", "email": null}'],
}
HARMLESS = [
    "born 1990-04-05, flight HAT136 on 2024-05-20 at 2024-05-15T15:00:00 for $1,250.30",
    "certificate_7504069 credit_card_4421486 order #W2378156 item 8124970213 reservation 4WQ150",
    "4111 1111 1111 1112 and 1234567890123456 are no cards, 1700000000123 ms is a time",
    "DE88 3704 0044 0532 0130 00 has a wrong check digit",
    "mia.li3818@example.com, admin@localhost, git@test, git@github.com:org/repo.git, icon@2x.png, x@y.reshape(2)",
    "127.0.0.1:8080 0.0.0.0 ::1 v1.2.3.4 1.2.3.4.5 999.1.1.1 203.0.113.9 2001:db8::1 version 1.2.3.4 pkg==1.2.3.4",
    "std::vector a::b x[::2] 12:30:45 10:20:30:40:50:60 ff:ff:ff:ff:ff:ff",
    "/home/ /home/ubuntu/x /usr/home_of/x",
    "https://host:8080/a@b sk-short task-abcdefghijklmnopqrstuvwxyz sk-loading-indicator-spinner",
    "555-123-4567 and 000-12-3456 and 12-345-6789,\n+20240101\n+20240102 lines of a patch",
    "550e8400-e29b-41d4-a716-446655440000 d41d8cd98f00b204e9800998ecf8427e da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "index 83db48f..bf269f4 100644 @@ -12,7 +12,9 @@ lat +48.858844 lon -122.4194155 1.23456789e+10",
    'max_tokens=4096 token: str password=get_password() api_key=os.environ[\'KEY\'] "password": "string"',
    '{"name": "get_user", "parameters": {}} {"name": "T-Shirt", "price": 46.85} {"name": "Ann", "size": "L"}',
    "PHONE on 2024-05-20 10:00, tel 12",
]


def shape(text: str) -> str:
    return re.sub("[a-z]", "a", re.sub("[A-Z]", "A", re.sub("[0-9]", "0", text)))


def run(*turns: Turn, asked: str = "Do it.", **values: object) -> Trajectory:
    return Trajectory("t", "s", "f", (Message("user", asked),), turns, **values)  # pyright: ignore[reportArgumentType]


def test_every_kind_is_tested() -> None:
    assert set(KINDS) == {*FOUND, "user"}  # users of home paths, as owners: test_redact_copies


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in FOUND.items() for value in values])
def test_found_replaced_counted_and_the_text_around_it_untouched(kind: str, value: str) -> None:
    for before, after in (("see ", " and go on."), ("", ""), ('{"a": "b\\n', '\\n"}')):
        redactor = Redactor(KEY)
        out = redactor.text(f"{before}{value}{after}")
        assert out.startswith(before)
        assert out.endswith(after)
        assert value not in out
        assert dict(redactor.counts) == {kind: 1}
        if kind not in ("email", "ipv4", "ipv6", "mac", "home_path"):
            assert shape(out) == shape(f"{before}{value}{after}")


@pytest.mark.parametrize("kind", ["email", "iban", "card", "national_id", "phone", "ipv4", "ipv6", "mac", "home_path"])
def test_stand_ins_are_left_alone_when_met_again(kind: str) -> None:
    for value in FOUND[kind]:
        once = Redactor(KEY).text(value)
        again = Redactor(b"another key")
        assert again.text(once) == once
        assert not again.counts


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_alike_stays(text: str) -> None:
    redactor = Redactor(KEY)
    assert redactor.text(text) == text
    assert not redactor.counts


def test_the_same_value_gets_the_same_stand_in_everywhere_and_another_value_another() -> None:
    one, other = Redactor(KEY), Redactor(KEY)
    assert one.text("ask ann@corp.io") == other.text("ask ann@corp.io")
    assert one.text("ANN@corp.io").lower() == one.text("ann@corp.io")
    assert one.text("ann@corp.io") != one.text("bob@corp.io")
    assert one.text("/home/ann/a and /home/ann/b").count(one.text("/home/ann")) == 2


def test_another_key_gives_other_stand_ins_so_that_guesses_cannot_be_confirmed() -> None:
    values = [value for values in FOUND.values() for value in values]
    same = [value for value in values if Redactor(KEY).text(value) == Redactor(b"another").text(value)]
    assert same == []


def test_arguments_stay_json_and_meaning_moves_along() -> None:
    arguments = json.dumps({"to": "ann@corp.io", "key": PEM, "path": "C:\\Users\\ann\\x", "n": 1.0})
    call = tool_call("c1", "send", arguments)
    said = Message("assistant", "", (call,), reasoning="ann@corp.io it is")
    redacted = Redactor(KEY).trajectory(run(Turn(said, (Message("tool", "sent"),)), asked="Write to ann@corp.io"))
    said = redacted.turns[0].assistant
    stand_in = redacted.prefix[0].content.removeprefix("Write to ")
    assert said.tool_calls[0].parsed is not None
    assert said.tool_calls[0].parsed["to"] == stand_in
    assert said.reasoning == f"{stand_in} it is"
    assert "ann" not in dump(redacted)
    assert "MIIE" not in dump(redacted)


def test_every_text_of_a_trajectory_is_looked_through() -> None:
    mail = "ann@corp.io"
    call = tool_call(f"id {mail}", f"to {mail}", json.dumps({"a": mail}))
    trajectory = Trajectory(
        id="t",
        source="s",
        family=mail,
        prefix=(Message("system", mail), Message("user", mail, name=mail)),
        turns=(
            Turn(
                Message("assistant", mail, (call,), reasoning=mail),
                (Message("tool", mail, tool_call_id=f"id {mail}", name=mail),),
                (Message("user", mail),),
            ),
        ),
        tools=({"function": {"name": "f", "description": mail, "parameters": {mail: [mail]}}},),
        probes=(Probe("p", "k", mail, mail, (mail, "x"), 0, 0),),
        label=Label("exact", {"a": [mail]}, (call,)),
        model=mail,
        meta={"exception": f"Traceback: no route to {mail}", "attachments": [{"text": mail}], mail: 1},
    )
    redactor = Redactor(KEY)
    assert mail not in dump(redactor.trajectory(trajectory))
    assert redactor.counts["email"] == dump(trajectory).count(mail)


def test_recorded_ids_go_where_text_was_replaced_and_stay_where_it_was_not() -> None:
    ids = RecordedIds((1, 2), (3,))
    clean = run(Turn(Message("assistant", "Hello"), ids=ids))
    assert Redactor(KEY).trajectory(clean) == clean
    told = Redactor(KEY).trajectory(run(Turn(Message("assistant", "I am ann@corp.io"), ids=ids)))
    assert told.turns[0].ids is None
    assert told.losses == ("ids_dropped",)


def test_samples_hold_nothing_to_redact() -> None:
    redactor = Redactor(KEY)
    for sample in samples.load():
        assert redactor.trajectory(sample) == sample
    assert not redactor.counts
