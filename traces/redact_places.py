"""Secrets that only the place they stand at gives away: arguments of programs, headers, cookies, signed addresses,
variables of an environment, password files, and the code on the back of a card.

Each rule is tried where its literal is found, and reads a bounded stretch from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .redact_stand_ins import StandIns
from .redact_view import Find, View

_SIGN = r"[\"']{0,8}\s{0,3}(?:=>|:=|[:=])\s{0,3}[\"'`]{0,8}"
_VALUE = r"([^\s\"'`,;&<>(){}\[\]|\\]{6,200})(?![\w(])"
_COOKIE = re.compile(r"=([^;\s\"'\\,]{16,2000})")
_CODE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")
_VARIABLE = re.compile(r"[$%<{*]|(?:your|my|the|example|placeholder|change|redacted)[_-]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Rule:
    """`shape` is matched where one of `literals` begins, its last group is the secret. `mixed`: only if that holds
    letters and digits. `cased`: capitals count.
    """

    literals: tuple[str, ...]
    shape: str
    kind: str = "password"
    mixed: bool = True
    cased: bool = False


_RULES = (
    _Rule(  # of curl; not the user and group of `docker run -u 1000:1000`
        (" -u ", " --user"),
        r" (?:-u|--user)[ =][\"']?([\w.@+-]{1,64}):(?!\1\b|\d+\b)([^\s\"'\\:]{4,100})",
        mixed=False,
    ),
    _Rule(("mysql",), r"mysql(?:dump|admin|import)?\b[^\n|;&\x1e]{0,100}?\s-p([^\s\"'\\]{4,100})", mixed=False),
    _Rule(("machine ",), r"machine \S{1,100}\s{1,4}login \S{1,64}\s{1,4}password (\S{4,100})", mixed=False),  # .netrc
    _Rule(  # in JSON also a word, if the key says nothing else: an account's password, not the description of a field
        ('"password"', "'password'", '"passwd"', '"pwd"', '"passphrase"'),
        r"[\"'](?:password|passwd|pwd|passphrase)[\"']{1,8}\s{0,3}:\s{0,3}[\"']{1,8}(?![$%<{*]|(?:your|my|the|new|enter)[_-]"
        r"|password|passphrase|required|invalid|redacted|optional)([^\s\"'\\]{8,100})[\"']",
        mixed=False,
    ),
    _Rule(("_pass",), r"_pass(?:wd)?" + _SIGN + _VALUE),
    _Rule(
        ("password is",),
        r"(?<=my |ew |ld )password is:? {0,2}[\"'`]?([^\s\"'`,;]{5,99}[^\s\"'`,;.!?])",
    ),
    _Rule(
        ("authori",),
        r"authori[sz]ation" + _SIGN + r"(?:[a-z0-9-]{1,20} {1,3})?([a-z0-9._~+/=-]{16,4000})",
        "secret",
    ),
    _Rule(("sig=", "signature="), r"(?<=[?&;-])(?:sig|signature)=([\w%~+/-]{20,600})", "secret"),
    _Rule(("_KEY",), r"_KEY(?:_BASE)?[\"']?\s?[=:]\s?[\"']?([\w+/=.-]{16,200})(?![\w(])", "secret", cased=True),
    _Rule(  # of password files
        ("$1$", "$5$", "$6$", "$y$", "$2", "$apr1$", "$argon2"),
        r"\$(?:[156y]|2[aby]|apr1|argon2\w{1,2})\$([\w./$,=+]{20,200})",
        "secret",
        cased=True,
    ),
    _Rule(
        ("cvv", "cvc", "security_code"),
        r"(?:cvv2?|cvc2?|security_code)" + _SIGN + r"(\d{3,4})(?![\w.])",
        "secret",
        mixed=False,
    ),
)
_COMPILED = [(rule, re.compile(rule.shape)) for rule in _RULES]
_COOKIES = re.compile(r"cookie" + _SIGN + r"((?:[\w.%-]{1,100}=[^;\s\"'\\,]{0,2000};? ?){1,50})")


def placed(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """All of these; what is no secret by its looks (a variable, a name in code) stays."""
    for rule, pattern in _COMPILED:
        text = view.shadow if rule.cased else view.low
        for literal in rule.literals:
            for match in _from(literal, pattern, text):
                group = pattern.groups
                if not rule.mixed or _mixed(match.group(group)):
                    yield _changed(view, match.span(group), rule.kind, stand_ins)
    for cookies in _from("cookie", _COOKIES, view.low):
        for match in _COOKIE.finditer(view.low, *cookies.span(1)):
            if _mixed(match.group(1)):
                yield _changed(view, match.span(1), "secret", stand_ins)


def _from(literal: str, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    at = text.find(literal)
    while at >= 0:
        match = pattern.match(text, at)
        if match:
            yield match
        at = text.find(literal, match.end() if match else at + len(literal))


def _mixed(value: str) -> bool:
    letters = any(map(str.isalpha, value))
    return letters and any(map(str.isdigit, value)) and not _VARIABLE.match(value) and not _CODE.fullmatch(value)


def _changed(view: View, span: tuple[int, int], kind: str, stand_ins: StandIns) -> Find:
    return Find(*span, kind, stand_ins.same_shape("secret", view.text[span[0] : span[1]]))
