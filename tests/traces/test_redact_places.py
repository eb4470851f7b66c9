"""Secrets without a shape of their own are found by where they stand, and nothing else there is taken for one."""

from __future__ import annotations

import json

import pytest

from kvmill.traces.redact import Redactor

KEY = b"of the tests"
HEX = "0123456789abcdef" * 2
FOUND = {
    "curl -s -u ann:hunter2Xy9 https://x.io": "hunter2Xy9",
    'curl --user "ann:correcthorse" https://x.io': "correcthorse",
    "mysqldump -uroot -phunter2Xy9 shop > x.sql": "hunter2Xy9",
    "machine x.io login ann password correcthorse": "correcthorse",
    "gh auth login --with-token a1B2c3D4e5F6g7H8i9": "a1B2c3D4e5F6g7H8i9",
    "export DB_PASS=hunter2Xy9": "hunter2Xy9",
    '{"db_pass": "hunter2Xy9"}': "hunter2Xy9",
    "yes, my new password is hunter2Xy9.": "hunter2Xy9",
    "<password>hunter2Xy9</password>": "hunter2Xy9",
    f"AZURE_OPENAI_KEY={HEX}": HEX,
    f"SECRET_KEY_BASE: '{HEX}'": HEX,
    f"Authorization: token {HEX}": HEX,
    json.dumps({"headers": {"Authorization": f"ApiKey {HEX}"}}): HEX,
    f"Cookie: theme=dark; sessionid={HEX}; lang=de": HEX,
    f"Set-Cookie: sid={HEX}; Path=/": HEX,
    f"https://a.blob.core.windows.net/c?sv=2020&sig={HEX}": HEX,
    f"https://x.s3.amazonaws.com/k?X-Amz-Signature={HEX}": HEX,
    "postgres://ann:p@ss9word@db.x/shop": "p@ss9word",
    "https://api.telegram.org/bot123456789:AA" + HEX + "x/getMe": HEX + "x",
    "ann:$6$saltsalt$" + HEX + ":19000:0": "saltsalt$" + HEX,
    "ann:$2b$12$" + HEX: "12$" + HEX,
    '{"card": "x", "cvv": "123"}': '"123"',
    '{"user": "ann", "password": "correcthorse"}': "correcthorse",
    json.dumps({"arguments": json.dumps({"passphrase": "correct-horse"})}): "correct-horse",
}
HARMLESS = [
    "someone tried to login with password flag{d316759c281bf925}",
    "docker run -u 1000:1000 -u node:node x",
    "ssh -p2222 ann; mysql -p shop; mkdir -pv a1b2c3",
    "first_pass = run(x)  # n_pass: 12, _passed=True, test_pass=12345678",
    "primary_key=None, CACHE_KEY = settings.CACHE_KEY_V2(x), KEY=value",
    "the cookie: a=b; c=d, cookie = request.cookies",
    "function.signature=inspect.signature(f) and &sig=1",
    "authorization: required for every request",
    "the password is checked by md5sum; my password is forgotten",
    "cost: $6 $2000 $1$ $5$; awk '{print $1$2}'",
    "cvv: see 4.5, cvc = 12.345",
    "<token>word</token> a-token is",
    '{"password": "string", "passphrase": "required-field", "pwd": "/home", "passwd": "{{ secret }}"}',
    '{"password": {"type": "string"}, "properties": ["password", "username"]}',
]


@pytest.mark.parametrize("text", FOUND)
def test_what_a_place_gives_away_is_replaced_alone(text: str) -> None:
    secret = FOUND[text]
    redactor = Redactor(KEY)
    changed = redactor.text(text)
    before, _, after = text.partition(secret)
    assert secret not in changed
    assert len(changed) == len(text)
    assert changed.startswith(before.rstrip('"'))
    assert changed.endswith(after)
    assert redactor.counts.total() == 1


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_stands_there_stays(text: str) -> None:
    assert Redactor(KEY).text(text) == text


def test_the_code_of_a_card_is_no_number_to_look_for_elsewhere() -> None:
    changed = Redactor(KEY).text('{"cvv": "123"} and 123 of them')
    assert changed.endswith(" and 123 of them")


def test_the_user_of_a_home_path_is_found_in_the_name_of_a_project_folder() -> None:
    changed = Redactor(KEY).text("/home/annlee/.claude/projects/-home-annlee-shop/x.jsonl for annlee")
    assert "-annlee-" not in changed
    assert changed.endswith("for annlee")
