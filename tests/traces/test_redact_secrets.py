"""Tokens of known shape, and values behind words such as `password`, are found; names of variables are not."""

from __future__ import annotations

import pytest

from kvmill.traces.redact import Redactor

KEY = b"of the tests"
A20, A32, A40 = "a1B2c3D4e5F6g7H8i9J0", "a1b2c3d4e5f60718" * 2, "a1B2c3D4e5" * 4
TOKENS = [
    "sk-ant-api03-" + A40,
    "sk-proj-" + A40,
    "sk-or-v1-" + A32,
    "sk-" + A32,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + A40,
    "glpat-" + A20,
    "ASIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefABCDEF",
    "xapp-1-A1B2C3D4-" + A32,
    "sk_live_" + A20,
    "rk_test_" + A20,
    "whsec_" + A32,
    "AIza" + "x1" * 17 + "y",
    "GOCSPX-" + A20 + "-abc",
    "hf_" + "aB" * 17,
    "npm_" + "a1B2" * 9,
    "pypi-AgEIcHlwaS5vcmc" + A40,
    "dckr_pat_" + A20,
    "dop_v1_" + A32 * 2,
    "shpat_" + A32,
    "dapi" + A32,
    "SK" + A32,
    "lin_api_" + A40,
    "gsk_" + A40,
    "tvly-dev-" + A32,
    "r8_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s",
    "lsv2_pt_" + A32 + "_0123456789",
    "hvs." + A32,
    "glsa_" + A40,
    "NRAK-" + "A1B2C3D4E5F6G7H8I9J0K1L2M3N",
    "figd_" + A40,
    "SG." + A20 + "ab" + "." + A40 + "abc",
    "123456789:AA" + A32,
    "https://hooks.slack.com/services/T0000AAAA/B0000BBBB/" + A20 + "abcd",
    "https://discord.com/api/webhooks/123456789012345678/" + A40 + A20,
    A32 + "-us12",
    "ya29." + A40,
]
ASSIGNED = {
    '{"password": "hunter2!"}': "hunter2!",
    '{\\"password\\": \\"hunter2!\\"}': "hunter2!",
    "DB_PASSWORD=correct4horse": "correct4horse",
    "password: 'a b' or passwd='p4ss,w:rd'": "p4ss,w:rd",
    "mysql --password correct4horse": "correct4horse",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfi1": "wJalrXUtnFEMI/K7MDENG/bPxRfi1",
    "https://x.io/?access_token=0123456789abcdef0123&y=1": "0123456789abcdef0123",
    "Authorization: Bearer 0a1b2c3d4e5f6a7b8c9d": "0a1b2c3d4e5f6a7b8c9d",
    "authorization: Basic dXNlcjpwYXNzd29yZDEyMw==": "dXNlcjpwYXNzd29yZDEyMw==",
    "AccountKey=abcDEF0123456789abcDEF0123456789==;Endpoint": "abcDEF0123456789abcDEF0123456789==",
    "redis://:s3cret@cache:6379": "s3cret",
}
HARMLESS = [
    "password = getpass()  # password: str, token: Token, secret=None",
    'os.environ["API_KEY_2"]; api_key=settings.API_KEY_V2; token=tokens[12]; password=user.password2',
    "max_tokens: 4096, token_count=1234567890123456, tokens=12345678901234567890",
    '{"password": "<your-password1>", "token": "${TOKEN_1234567890}", "api_key": "YOUR_API_KEY_1234567"}',
    '{"token": "Hello1", "logprob": -0.1}',
    "the secret of 12 pages: a basic understandingofthematter, bearer of news",
    'type="password" name="password" id="password2"',
    "https://host:8080/path user@host https://example.org/a:b@c",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "task-0123456789abcdefghijkl disk-0123456789abcdefghijkl call_0123456789abcdefghijklmn",
    "chatcmpl-0123456789abcdefghi msg_0123456789abcdefghijklmn",
]


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_of_known_services_are_found_and_keep_their_beginning(token: str) -> None:
    for before, after in (("key ", " end"), ('{"k": "x\\n', '"}'), ("my-key-", ""), ("?k=", "&z=1")):
        if before == "my-key-" and not token[0].isalpha():
            continue
        redactor = Redactor(KEY)
        out = redactor.text(before + token + after)
        assert redactor.counts.total() == 1
        assert token not in out
        assert len(out) == len(before + token + after)
        assert out.startswith(before + ("" if token.endswith("-us12") else token[:2]))


@pytest.mark.parametrize("text", ASSIGNED)
def test_what_stands_behind_a_word_for_secrets_is_replaced_alone(text: str) -> None:
    secret = ASSIGNED[text]
    out = Redactor(KEY).text(text)
    assert secret not in out
    before, _, after = text.partition(secret)
    assert out.startswith(before)
    assert out.endswith(after)


@pytest.mark.parametrize("text", HARMLESS)
def test_names_of_variables_placeholders_and_counts_stay(text: str) -> None:
    redactor = Redactor(KEY)
    assert redactor.text(text) == text
    assert not redactor.counts


def test_a_private_key_without_its_end_is_still_one() -> None:
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nAAAAE2VjZHNh"
    out = Redactor(KEY).text(text)
    assert out.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert "b3Blbn" not in out
    assert "AAAAE2" not in out


@pytest.mark.parametrize("gap", [1, 30, 79, 81])
def test_a_token_soon_after_another_is_replaced_to_its_end(gap: int) -> None:
    token = "sk-ant-api03-" + A40 * 3
    for before in ("hf_" + "aB" * 17, "a" * 25):
        changed = Redactor(KEY).text(f"{before}{' ' * gap}{token}")
        kept = [a == b for a, b in zip(changed[-120:], token[-120:], strict=True)]
        assert sum(kept[-60:]) < 20, changed


def test_a_home_path_in_json_inside_json_is_still_one() -> None:
    for slashes in (1, 2, 4, 8, 16):
        text = "C:" + "\\" * slashes + "Users" + "\\" * slashes + "hmueller"
        assert "hmueller" not in Redactor(KEY).text(text)
