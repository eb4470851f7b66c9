"""The exit codes of the three families, and the message for a name nobody knows."""

from __future__ import annotations

import pytest

from kvmill.errors import Incomplete, InputError, KvmillError, NoAnswer, RegressionFound, UserError, unknown


def test_exit_codes_are_those_of_the_contract():
    codes = {
        UserError("x"): 2,
        InputError("x"): 3,
        NoAnswer("x", "kv blocks"): 4,
        RegressionFound("x"): 5,
        Incomplete("x"): 6,
    }
    assert {type(e).__name__: e.exit_code for e in codes} == {type(e).__name__: code for e, code in codes.items()}
    assert all(isinstance(e, KvmillError) for e in codes)


def test_input_error_is_the_users_to_fix():
    with pytest.raises(UserError):
        raise InputError("nothing could be read")


def test_no_answer_names_what_binds():
    assert NoAnswer("no fleet does", "KV blocks").constraint == "KV blocks"


def test_unknown_lists_what_is_known_sorted_and_guesses_the_typo():
    text = str(unknown("policy", "trunkate", ["truncate", "full"], "policies.toml"))
    assert text == "unknown policy 'trunkate' in policies.toml. Did you mean 'truncate'? Known: full, truncate"


def test_unknown_does_not_guess_wildly_and_says_when_nothing_is_known():
    assert str(unknown("gpu", "abacus", ["h100"])) == "unknown gpu 'abacus'. Known: h100"
    assert str(unknown("option", "keep", [])) == "unknown option 'keep'. Known: none"
