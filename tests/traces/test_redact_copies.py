"""What was found once is replaced alike wherever the run repeats it, so that an agent that copies still copies."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from kvmill.traces.record import tool_call
from kvmill.traces.redact import Redactor
from kvmill.traces.trajectory import Message, Trajectory, Turn

KEY = b"of the tests"


def said(*texts: str) -> list[str]:
    """The texts as the messages of one redacted run."""
    turns = tuple(Turn(Message("assistant", text)) for text in texts)
    redacted = Redactor(KEY).trajectory(Trajectory("t", "s", "f", (Message("user", "Go."),), turns))
    return [turn.assistant.content for turn in redacted.turns]


@pytest.mark.parametrize(
    "copy",
    [
        "write to ann.lee@corp.io now",
        json.dumps({"to": "ann.lee@corp.io"}),
        json.dumps({"body": json.dumps({"lines": "hello\nann.lee@corp.io"})}),
        "mailto:ann.lee%40corp.io?subject=x",
        '{"to": "ann.lee\\u0040corp.io"}',
        "\x1b[31mann.lee@corp.io\x1b[0m",
    ],
)
def test_an_email_is_the_same_in_every_spelling(copy: str) -> None:
    stand_in = said("ann.lee@corp.io")[0]
    assert stand_in.endswith("@example.com")
    for sign in ("@", "%40", "\\u0040"):
        copy = copy.replace(f"ann.lee{sign}corp.io", f"<{sign}>")
    expected = copy
    for sign in ("@", "%40", "\\u0040"):
        expected = expected.replace(f"<{sign}>", stand_in.replace("@", sign))
    spelled = copy
    for sign in ("@", "%40", "\\u0040"):
        spelled = spelled.replace(f"<{sign}>", f"ann.lee{sign}corp.io")
    assert said(spelled)[0] == expected


def test_an_address_in_capitals_is_the_same_address() -> None:
    small, large = said("ann.lee@corp.io", "ANN.LEE@CORP.IO")
    assert large.lower() == small


def test_a_telephone_copied_without_separators_rings_the_same_stand_in() -> None:
    bare, written, abroad = said("dial 4152622671", "call (415) 262-2671", "call +1 415 262 2671")
    digits = "".join(c for c in written if c.isdigit())
    assert digits[:3] == "555"
    assert bare == f"dial {digits}"
    assert "".join(c for c in abroad if c.isdigit()) == f"1{digits}"


def test_bare_digits_that_no_rule_found_stay() -> None:
    assert said("dial 4152622671", "call (415) 262-2672")[0] == "dial 4152622671"


def test_a_name_under_a_key_is_a_name_in_prose_and_in_ids_too() -> None:
    record = '{"user_id": "ann_lee_3668", "name": {"first_name": "Ann", "last_name": "Lee"}}'
    asked, found, called = said(
        "I am Ann Lee, user ann_lee_3668, not anna.", record, 'Thanks, Ann! {"user": "ann_lee_3668"}'
    )
    fresh = json.loads(found)
    first, last = fresh["name"]["first_name"], fresh["name"]["last_name"]
    assert first != "Ann"
    assert (first.istitle(), len(first), len(last)) == (True, 3, 3)
    assert fresh["user_id"] == f"{first}_{last}_3668".lower()
    assert asked == f"I am {first} {last}, user {fresh['user_id']}, not anna."
    assert called == f'Thanks, {first}! {{"user": "{fresh["user_id"]}"}}'


def test_names_with_escapes_and_letters_beyond_ascii_are_names() -> None:
    record, prose = said(json.dumps({"first_name": "José", "last_name": "Müller"}), "José Müller called.")
    assert "\\u" not in record
    name = json.loads(record)
    assert prose == f"{name['first_name']} {name['last_name']} called."


def test_short_capitals_and_ordinary_words_are_no_names() -> None:
    record = '{"first_name": "Mia", "last_name": "May"}'
    assert said(record, "Fly MIA to LAX on 3 May. mia")[1] == "Fly MIA to LAX on 3 May. mia"
    assert said(record, "Mia May")[1] != "Mia May"
    assert said(record, "Mia?")[1] != "Mia?"


def test_names_of_things_stay() -> None:
    texts = (
        '{"name": "Water Bottle", "product_id": "8310926033"}',
        '{"name": "get_user", "description": "first_name and e-mail"}',
    )
    assert said(*texts) == list(texts)


def test_a_password_is_replaced_where_it_is_used_as_well() -> None:
    set_, used, other = said("export DB_PASSWORD=correct4horse", "mysql -pX correct4horse", "Correct4horse")
    secret = set_.removeprefix("export DB_PASSWORD=")
    assert secret != "correct4horse"
    assert used == f"mysql -pX {secret}"
    assert other == "Correct4horse"


def test_the_user_of_a_home_path_owns_files_and_stands_at_prompts_and_is_no_word_elsewhere() -> None:
    listing = "drwxr-xr-x 2 alice alice 4096 May 1 10:00 src\nuid=1000(alice) gid=1000(alice)\nalice@box:~$ ls ~alice"
    shown, prose = said(f"/home/alice/src\n{listing}", "alice is a name")
    assert prose == "alice is a name"
    assert "alice" not in shown
    assert shown.count(shown[6:15]) == 7


def test_a_copy_before_what_explains_it_is_found() -> None:
    call = tool_call("c", "find", '{"n": "4152622671"}')
    run = Trajectory(
        "t",
        "s",
        "f",
        (Message("user", "Go."),),
        (Turn(Message("assistant", "", (call,)), (Message("tool", "(415) 262-2671"),)),),
    )
    redacted = Redactor(KEY).trajectory(run).turns[0]
    digits = "".join(c for c in redacted.tools[0].content if c.isdigit())
    assert redacted.assistant.tool_calls[0].parsed == {"n": digits}


def test_runs_do_not_tell_each_other_names() -> None:
    redactor = Redactor(KEY)
    assert redactor.text('{"first_name": "Zoltan"}') != '{"first_name": "Zoltan"}'
    assert redactor.text("Zoltan") == "Zoltan"


def test_texts_that_are_looked_through_together_do_not_run_into_each_other() -> None:
    texts = ("password:", "abc12345", "ann@corp", ".io", "call 415-262", "-2671", '{"name": "Ann"', ', "email": 1}')
    assert said(*texts) == list(texts)


def test_names_in_json_that_was_escaped_again_and_again_are_names() -> None:
    text = '{"first_name": "Annegret", "last_name": "Lee"}'
    for _ in range(4):
        assert "Annegret" not in said(text)[0]
        assert len(said(text)[0]) == len(text)
        text = json.dumps({"inner": text})


def test_a_name_that_is_a_user_too_is_replaced_as_both() -> None:
    shown, prose = said('/home/annegret {"first_name": "Annegret"}', "Annegret, annegret@box:~$, annegret")
    assert "nnegret" not in shown
    assert prose.count("nnegret") == 1, "a word in small letters that is neither at a prompt nor a name stays"


def test_names_in_what_python_prints_of_a_dict_are_names() -> None:
    shown, prose = said("{'first_name': 'Annegret', 'last_name': \"O'Brien\"}", "Annegret O'Brien and annegret_o'brien")
    assert "Annegret" not in shown
    assert "Brien" not in shown
    assert "nnegret" not in prose
    assert "rien" not in prose
    assert said("{'name': 'Ann Lee', 'email': 'x'}")[0] != "{'name': 'Ann Lee', 'email': 'x'}"
    assert said("{'name': 'get_user'} it's John's name's")[0] == "{'name': 'get_user'} it's John's name's"


def test_copies_are_found_across_the_groups_in_which_a_long_run_is_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = ("Annegret called 4152622671", "x" * 50, '{"first_name": "Annegret"}', "y" * 50, "call (415) 262-2671")
    together = said(*texts)
    monkeypatch.setattr("kvmill.traces.redact._BATCH", 60)
    assert said(*texts) == together
    assert "Annegret" not in together[0]
    assert "4152622671" not in together[0]


def test_names_before_an_address_in_brackets_are_names() -> None:
    commit, prose = said("Author: Ann B. Lindqvist <ann@corp.io>\n\n    Fix", "Thanks, Lindqvist.")
    assert commit.startswith("Author: ")
    assert "Lindqvist" not in commit + prose
    assert said("From Ann Lindqvist <ann@corp.io>")[0].startswith("From ")
    for text in ("run `List<int>`, a <b> Some Title <c>", "openhands <o@example.com>", "x < Ann Lee"):
        assert said(text)[0] == text


@pytest.mark.parametrize(
    "value", ["ann.lee@corp.io", "(415) 262-2671", "4111 1111 1111 1111", "/home/annegret", "84.23.11.9"]
)
@pytest.mark.parametrize("encode", [quote, quote_plus, lambda text: quote(text, safe="")])
def test_what_is_percent_encoded_is_replaced_by_the_encoded_stand_in(value: str, encode: Any) -> None:
    plain, url = said(f"see {value} there", f"https://x.io/a?q={encode(value)}&b=100%25")
    assert value not in plain
    assert url == f"https://x.io/a?q={encode(plain[4:-6])}&b=100%25"
