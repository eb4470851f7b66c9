"""National and tax identifiers, each with its own check digits where it has them.

Ids that are mere digits without a strong check are only taken after a word that names them: an order number must not
become a tax number. The rules are those that the issuing offices publish, collected by country in
https://en.wikipedia.org/wiki/National_identification_number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .redact_stand_ins import StandIns
from .redact_view import Find, View

_NAMED = re.compile(
    r"(?<![a-z])(?:ssn|social.?sec|social.?ins|bsn|burgerservice|steuer|tax|tin|cpf|aadhaar|aadhar|pesel|sin|nir|dni"
    r"|national.?id|passport|identity.?card|identity.?number|personnummer|cpr|tfn|my.?number|nino|nhs)"
    r"(?![a-z])[^\n]{0,24}\Z|(?:steuer|passport)[^\n]{0,24}\Z"
)
_NAMED_REACH = 48


@dataclass(frozen=True, slots=True)
class IdRule:
    """`pattern` as it is written; `check` gets its letters and digits. `named`: only after a word that says so."""

    country: str
    pattern: str
    check: Callable[[str], bool]
    named: bool = False


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        double = int(digit) * 2 if place % 2 else int(digit)
        total += double - 9 if double > 9 else double
    return total % 10 == 0


# Verhoeff's tables: multiplication in the dihedral group of ten elements, and the permutation by place.
_D5 = [[(a + b) % 5 + (0 if b < 5 else 5) for b in range(10)] for a in range(5)]
_D5 += [[(a - b) % 5 + (5 if b < 5 else 0) for b in range(10)] for a in range(5, 10)]
_PERMUTED = [list(range(10)), [1, 5, 7, 6, 2, 8, 3, 0, 9, 4]]
for _ in range(6):
    _PERMUTED.append([_PERMUTED[1][digit] for digit in _PERMUTED[-1]])


def verhoeff(digits: str) -> bool:
    """Verhoeff 1969, check digit last."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = _D5[check][_PERMUTED[place % 8][int(digit)]]
    return check == 0


def _sum(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(d) * w for d, w in zip(digits, weights, strict=False))


def _dated(digits: str) -> bool:
    """Whether a month and a day stand after a year of two digits."""
    return 1 <= int(digits[2:4]) <= 12 and 1 <= int(digits[4:6]) <= 31


def _us(d: str) -> bool:
    return d[:3] not in ("000", "666") and d[0] != "9" and d[3:5] != "00" and d[5:] != "0000"


def _german(d: str) -> bool:
    """ISO/IEC 7064 MOD 11,10; in the first ten one digit stands two or three times."""
    check = 10
    for digit in d[:-1]:
        check = ((int(digit) + check) % 10 or 10) * 2 % 11
    return (11 - check) % 10 == int(d[-1]) and max(d[:10].count(digit) for digit in d[:10]) in (2, 3)


def _brazilian(d: str) -> bool:
    checks = [_sum(d, tuple(range(n + 1, 1, -1))) * 10 % 11 % 10 for n in (9, 10)]
    return len(set(d)) > 1 and checks == [int(d[9]), int(d[10])]


def _french(d: str) -> bool:
    number = d[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(d[13:])


def _spanish(d: str) -> bool:
    number = str("XYZ".find(d[0])) + d[1:-1] if d[0] in "XYZ" else d[:-1]
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == d[-1]


_ITALIAN_ODD = [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23]


def _italian(d: str) -> bool:
    places = [int(c) if c.isdigit() else ord(c) - 65 for c in d[:15]]
    total = sum(_ITALIAN_ODD[p] if n % 2 == 0 else p for n, p in enumerate(places))
    return chr(65 + total % 26) == d[15]


def _chinese(d: str) -> bool:
    return "10X98765432"[_sum(d, (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)) % 11] == d[17]


def _korean(d: str) -> bool:
    return _dated(d) and (11 - _sum(d, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10 == int(d[12])


def _finnish(d: str) -> bool:
    return "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(d[:9]) % 31] == d[9] and 1 <= int(d[2:4]) <= 12


def _belgian(d: str) -> bool:
    return int(d[9:]) in (97 - int(d[:9]) % 97, 97 - int("2" + d[:9]) % 97)


def _mexican(d: str) -> bool:
    letters = "0123456789ABCDEFGHIJKLMNÑOPQRSTUVWXYZ"
    return (10 - sum(letters.index(c) * (18 - n) for n, c in enumerate(d[:17])) % 10) % 10 == int(d[17])


def _dutch(d: str) -> bool:
    return (_sum(d, (9, 8, 7, 6, 5, 4, 3, 2)) - int(d[8])) % 11 == 0 and len(set(d)) > 1


def _british_health(d: str) -> bool:
    return (11 - _sum(d, (10, 9, 8, 7, 6, 5, 4, 3, 2)) % 11) % 11 == int(d[9])


@dataclass(frozen=True, slots=True, eq=False)
class IdRules:
    """Rules that are tried together; `anywhere` is the pattern of those that need no word before them."""

    rules: tuple[IdRule, ...]
    anywhere: re.Pattern[str]
    named: re.Pattern[str]


def _together(*rules: IdRule) -> IdRules:
    def pattern(chosen: list[IdRule]) -> re.Pattern[str]:
        parts = "|".join(rule.pattern for rule in chosen)
        return re.compile(f"(?<![\\w+-])(?<!\\d\\.)(?:{parts})(?![\\w-]|\\.\\d)")

    return IdRules(rules, pattern([rule for rule in rules if not rule.named]), pattern(list(rules)))


DIGITS = _together(  # begin with a digit
    IdRule("us", r"\d{3}-\d{2}-\d{4}", _us),
    IdRule("br", r"\d{3}\.\d{3}\.\d{3}-\d{2}", _brazilian),
    IdRule("be", r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", _belgian),
    IdRule("ch", r"756\.\d{4}\.\d{4}\.\d{2}", lambda d: (10 - _sum(d, (1, 3) * 6) % 10) % 10 == int(d[12])),
    IdRule("kr", r"\d{6}-[1-8]\d{6}", _korean),
    IdRule("se", r"\d{6}[-+]\d{4}", lambda d: _dated(d) and luhn(d)),
    IdRule("fi", r"\d{6}[-+]\d{3}[0-9A-FHJ-NPR-Y]", _finnish),
    IdRule("ca", r"[1-7]\d{2}-\d{3}-\d{3}", luhn),
    IdRule("in", r"[2-9]\d{3}(?:-\d{4}-|[ ]\d{4}[ ])\d{4}", verhoeff),
    IdRule("fr", r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", _french),
    IdRule("cn", r"[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dX]", _chinese),
    IdRule("es", r"\d{8}-?[A-HJ-NP-TV-Z]", _spanish),
    IdRule("us_named", r"\d{9}", _us, named=True),
    IdRule("nl", r"\d{9}", _dutch, named=True),
    IdRule("ca_named", r"\d{3} ?\d{3} ?\d{3}", luhn, named=True),
    IdRule("au", r"\d{3} ?\d{3} ?\d{3}", lambda d: _sum(d, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0, named=True),
    IdRule("gb_health", r"\d{3} ?\d{3} ?\d{4}", _british_health, named=True),
    IdRule("de", r"\d{2} ?\d{3} ?\d{3} ?\d{3}", _german, named=True),
    IdRule("br_named", r"\d{11}", _brazilian, named=True),
    IdRule("pl", r"\d{11}", lambda d: _sum(d, (1, 3, 7, 9) * 2 + (1, 3, 1)) % 10 == 0, named=True),
    IdRule("in_named", r"\d{12}", verhoeff, named=True),
    IdRule("dk", r"\d{6}-\d{4}", lambda d: 1 <= int(d[2:4]) <= 12, named=True),
    IdRule("passport", r"\d{8,9}", lambda d: True, named=True),
)
LETTERS = _together(  # begin with a capital
    IdRule("gb", r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", lambda d: True),
    IdRule("nie", r"[XYZ]-?\d{7}-?[A-HJ-NP-TV-Z]", _spanish),
    IdRule("it", r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]", _italian),
    IdRule("mx", r"[A-Z][AEIOUX][A-Z]{2}\d{6}[HMX][A-Z]{2}[B-DF-HJ-NP-TV-Z]{3}[A-Z\d]\d", _mexican),
    IdRule("passport_letters", r"[A-Z]{1,2}\d{6,8}", lambda d: True, named=True),
)


def national_ids(view: View, start: int, first: int, end: int, rules: IdRules, stand_ins: StandIns) -> Iterator[Find]:
    """Ids between two places of the shadow; a word that names them stands before `first`."""
    named = _NAMED.search(view.low, max(0, first - _NAMED_REACH), first) is not None
    for match in (rules.named if named else rules.anywhere).finditer(view.shadow, start, end):
        found = match.group()
        fitting = [rule for rule in rules.rules if (named or not rule.named) and _valid(rule, found)]
        if fitting:
            yield Find(match.start(), match.end(), "national_id", _other(fitting[0], found, stand_ins))


def _valid(rule: IdRule, text: str) -> bool:
    return re.fullmatch(rule.pattern, text) is not None and rule.check(_plain(text))


def _plain(text: str) -> str:
    return re.sub(r"[^0-9A-Z]", "", text)


def _other(rule: IdRule, found: str, stand_ins: StandIns) -> str:
    """A stand-in that is no valid id: its check fails, or, without a check, it begins as none may."""
    changed = stand_ins.same_shape("national_id", found, _plain(found))
    if rule.country.startswith("us"):
        return "9" + changed[1:]
    if rule.country == "gb":
        return "QQ" + changed[2:]
    last = max(n for n, c in enumerate(changed) if c.isalnum())
    pool = "0123456789" if changed[last].isdigit() else "ABCDEFGHJK"
    others = (changed[:last] + other + changed[last + 1 :] for other in pool)
    return next((other for other in others if not _valid(rule, other)), changed)
