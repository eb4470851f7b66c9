"""Numbers that belong to somebody: payment cards, bank accounts, telephones, and national ids of digits.

Text is scanned once for clusters of digits; only these are looked at. Stand-ins ring nowhere and pay nothing: cards
fail the Luhn check, IBANs fail mod 97, telephones have the area 555 or the unassigned country code 999.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from .redact_addresses import ipv4
from .redact_ids import DIGITS, LETTERS, luhn, national_ids
from .redact_stand_ins import StandIns, spelled
from .redact_view import Find, View

_CLUSTER = re.compile(r"[0-9][0-9 .()/+-]{5,}[0-9]")
_CARD = re.compile(
    r"(?<![\w-])(?<!\d\.)(?:\d{15,16}|\d{19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}[ -]\d{6}[ -]\d{5})(?![\w-]|\.\d)"
)
_ISSUED = re.compile(r"4(?:\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|6\d{15}")
_PHONE = re.compile(
    r"(?<![\w+-])(?<!\d\.)(?:\+[1-9]\d{0,2}(?:[ -]?\(\d{1,4}\)[ -]?|[ -])\d{1,5}(?:[ /-]\d{2,8}){0,4}"
    r"|\+[1-9]\d{0,2}(?:\.\d{2,4}){3,4}|\+[1-9]\d{7,14}"
    r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4})(?![\w-]|\.\d)"
)
_CALLED = re.compile(r"(?:phone|\btel|mobile|\bfax|whatsapp)[^0-9\n]{0,20}\Z")
_CALLED_PHONE = re.compile(
    r"(?<![\w+-])(?<!\d\.)(?!\d{4}-\d{2}-\d{2}|\d{1,2}/\d{1,2}/\d)"
    r"\(?\d{2,15}\)?(?:[ ./-]{1,2}\d{2,8}){0,4}(?![\w-]|\.\d)"
)
_LETTERS_FIRST = re.compile(r"[A-Z][A-Z-]? ?[0-9]{2}")
# https://www.swift.com/standards/data-standards/iban-international-bank-account-number
_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
_NUMBERED = {ord(letter): str(number) for number, letter in enumerate(string.ascii_uppercase, 10)}
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}")


def numbers(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """Everything that is found in clusters of digits, IPv4 addresses included."""
    text = view.shadow
    for cluster in _CLUSTER.finditer(text):
        found = cluster.group()
        if len(found) == 10 and found[4] == "-" == found[7]:
            continue  # a date, which most clusters are
        if found.count(".") >= 3:
            yield from ipv4(view, cluster.start(), cluster.end() + 2, stand_ins)
        digits = sum(map(found.count, "0123456789"))
        if digits >= 8:
            yield from _long(view, cluster, digits, stand_ins)


def _long(view: View, cluster: re.Match[str], digits: int, stand_ins: StandIns) -> Iterator[Find]:
    text, first = view.shadow, cluster.start()
    start, end = max(0, first - 3), cluster.end() + 3  # a sign or bracket before it, a letter after it
    if digits >= 15:
        for match in _CARD.finditer(text, start, end):
            if changed := _card(match.group(), stand_ins):
                yield Find(match.start(), match.end(), "card", changed)
    yield from national_ids(view, start, first, end, DIGITS, stand_ins)
    called = _CALLED.search(view.low, max(0, first - 40), first)
    for pattern in (_PHONE, _CALLED_PHONE) if called else (_PHONE,):
        for match in pattern.finditer(text, start, end):
            if changed := _phone(text, match, stand_ins):
                yield Find(match.start(), match.end(), "phone", changed)


def lettered(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """Bank accounts and ids that begin with capitals."""
    text, done = view.shadow, 0
    for sign in _LETTERS_FIRST.finditer(text):
        if sign.start() < done:
            continue
        start = max(done, sign.start() - 5)
        if iban := _iban(text, sign.start(), stand_ins):
            done = iban.end
            yield iban
            continue
        for found in national_ids(view, start, sign.start(), sign.start() + 24, LETTERS, stand_ins):
            if found.start >= done:
                done = found.end
                yield found


def _card(value: str, stand_ins: StandIns) -> str | None:
    digits = re.sub(r"\D", "", value)
    if not _ISSUED.fullmatch(digits) or not luhn(digits):
        return None
    changed = digits[0] + stand_ins.digits("card", digits, digits)[1:]
    if luhn(changed):
        changed = changed[:-1] + str((int(changed[-1]) + 1) % 10)
    return spelled(value, changed)


def _iban(text: str, start: int, stand_ins: StandIns) -> Find | None:
    """The account that begins here: as many letters and digits as its country's have, in groups of four or in one."""
    length = _IBAN_LENGTHS.get(text[start : start + 2])
    found = length and _IBAN.match(text, start)
    if not length or not found:
        return None
    plain = found.group().replace(" ", "")[:length]
    if len(plain) < length or _mod_97(plain) != 1:
        return None
    end = start
    for letter in plain:
        end = text.index(letter, end) + 1
    if text[end : end + 1].isalnum():
        return None
    value = text[start:end]
    changed = value[:2] + stand_ins.same_shape("iban", value, plain)[2:]
    if _mod_97(changed.replace(" ", "")) == 1:
        changed = changed[:3] + str((int(changed[3]) + 1) % 10) + changed[4:]
    return Find(start, end, "iban", changed)


def _mod_97(value: str) -> int:
    return int((value[4:] + value[:4]).translate(_NUMBERED)) % 97


def _phone(text: str, match: re.Match[str], stand_ins: StandIns) -> str | None:
    """+1 and bare numbers of ten digits get the area 555, others the country code 999."""
    value = match.group()
    digits = re.sub(r"\D", "", value)
    american = len(digits) == 10 if value[0] != "+" else False
    if len(digits) == 11 and digits[0] == "1":
        american = True
    area, at = ("555", len(digits) - 10) if american else ("999", 0)
    if not 8 <= len(digits) <= 15 or digits[at : at + 3] == area:
        return None
    line_begins = match.start() == 0 or text[match.start() - 1] == "\n"
    if value[0] == "+" and line_begins and len(digits) < 10:
        return None  # a line that a patch adds
    rest = digits[at + 3 :]
    changed = digits[:at] + area + stand_ins.digits("phone", rest, digits[-10:] if american else digits)
    return spelled(value, changed)
