"""Personal data and secrets out of text, before anything is stored: on by default.

What is found is replaced by a stand-in of the same shape, the same one for the same value wherever it occurs, so that
a trace still makes sense and its lengths stay. Stand-ins lie in ranges that belong to nobody (555 numbers, addresses
reserved for documentation and benchmarks, cards that fail the Luhn check) and are left alone when met again. They are
derived from the value by a fixed hash: that keeps runs reproducible, and means that short values such as phone
numbers can be guessed by trying them all. Redaction is no anonymisation: names and free text stay.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .record import tool_call
from .trajectory import Label, Message, Probe, ToolCall, Trajectory, Turn

_RESERVED = re.compile(r"@(?:[\w-]+\.)*(?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$", re.IGNORECASE)
_BENCHMARK = ipaddress.ip_network("198.18.0.0/15")
_NOBODY = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")]
_PLAIN_HOMES = ("shared", "public", "default", "runner", "ubuntu", "user", "node", "app", "vscode")


@dataclass(frozen=True, slots=True)
class Kind:
    """`hints`: the pattern is only tried on text that holds one of them. `change`: the stand-in, None to leave it."""

    name: str
    hints: tuple[str, ...]
    pattern: str
    change: Callable[[str], str | None]


class Redactor:
    """Redacts text and counts what it replaced, by kind, in `counts`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def text(self, text: str) -> str:
        """`text` with every find replaced, in one pass."""
        active = tuple(kind.name for kind in KINDS if not kind.hints or any(hint in text for hint in kind.hints))
        return _pattern(active).sub(self._change, text) if active else text

    def value(self, value: Any) -> Any:
        """The same for all strings inside JSON data; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, (list, tuple)) else value

    def trajectory(self, trajectory: Trajectory) -> Trajectory:
        """All text of a trajectory: what was said, arguments, probes, label, meta."""
        label = trajectory.label
        return replace(
            trajectory,
            prefix=tuple(map(self._message, trajectory.prefix)),
            turns=tuple(map(self._turn, trajectory.turns)),
            tools=tuple(self.value(tool) for tool in trajectory.tools),
            probes=tuple(map(self._probe, trajectory.probes)),
            label=label and Label(label.scorer, self.value(label.value), tuple(map(self._call, label.gold_actions))),
            meta=self.value(trajectory.meta),
        )

    def _change(self, match: re.Match[str]) -> str:
        kind = _BY_NAME[match.lastgroup or ""]
        stand_in = kind.change(match.group())
        if stand_in is None:
            return match.group()
        self.counts[kind.name] += 1
        return stand_in

    def _message(self, message: Message) -> Message:
        return replace(
            message,
            content=self.text(message.content),
            reasoning=message.reasoning and self.text(message.reasoning),
            tool_calls=tuple(map(self._call, message.tool_calls)),
        )

    def _call(self, call: ToolCall) -> ToolCall:
        return tool_call(call.id, call.name, self.text(call.arguments))

    def _turn(self, turn: Turn) -> Turn:
        return replace(
            turn,
            assistant=self._message(turn.assistant),
            tools=tuple(map(self._message, turn.tools)),
            user=tuple(map(self._message, turn.user)),
        )

    def _probe(self, probe: Probe) -> Probe:
        return replace(
            probe,
            question=self.text(probe.question),
            answer_prefix=self.text(probe.answer_prefix),
            candidates=tuple(map(self.text, probe.candidates)),
        )


def _bytes(kind: str, value: str) -> bytes:
    out = b""
    while len(out) < len(value) + 16:
        out += hashlib.sha256(f"kvmill/{kind}/{len(out)}/{value}".encode(errors="replace")).digest()
    return out


def _same_shape(kind: str, value: str, key: str | None = None) -> str:
    """Letters for letters, digits for digits; punctuation and JSON escapes stay."""
    stream = iter(_bytes(kind, key or value))
    pools = (string.ascii_lowercase, string.ascii_uppercase, string.digits)

    def other(match: re.Match[str]) -> str:
        found = match.group()
        pool = next((pool for pool in pools if found in pool), None)
        return pool[next(stream) % len(pool)] if pool else found

    return re.sub(r"\\.|[A-Za-z0-9]", other, value)


def _email(value: str) -> str | None:
    if _RESERVED.search(value):
        return None
    return _same_shape("email", value.partition("@")[0], value.lower()) + "@example.com"


def _phone(value: str) -> str | None:
    """+1 and bare numbers get the area 555, others the unassigned country code 999: neither rings anywhere."""
    digits = re.sub(r"\D", "", value)
    abroad = value.startswith("+") and not (digits.startswith("1") and len(digits) == 11)
    area, at = ("999", 0) if abroad else ("555", len(digits) - 10)
    if not 8 <= len(digits) <= 15 or at < 0 or digits[at : at + 3] == area:
        return None
    changed = re.sub(r"\D", "", _same_shape("phone", value, digits))
    stream = iter(digits[:at] + area + changed[at + 3 :])
    return re.sub(r"\d", lambda _: next(stream), value)


def _luhn(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        double = int(digit) * 2 if place % 2 else int(digit)
        total += double - 9 if double > 9 else double
    return total % 10 == 0


def _card(value: str) -> str | None:
    digits = re.sub(r"\D", "", value)
    issued = re.fullmatch(r"4(\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|6\d{15}", digits)
    if not issued or not _luhn(digits):
        return None
    changed = digits[0] + _same_shape("card", value, digits)[1:]
    last = int(changed[-1])
    return changed[:-1] + str((last + 1) % 10 if _luhn(re.sub(r"\D", "", changed)) else last)


def _mod_97(value: str) -> int:
    turned = value[4:] + value[:4]
    return int("".join(str(int(c, 36)) for c in turned)) % 97


def _iban(value: str) -> str | None:
    groups = value.split(" ")
    for count in range(len(groups), 0, -1):  # capitals that follow may look like one more group
        found, rest = " ".join(groups[:count]), groups[count:]
        if 15 <= len(found.replace(" ", "")) <= 34 and _mod_97(found.replace(" ", "")) == 1:
            changed = found[:2] + _same_shape("iban", found, found.replace(" ", ""))[2:]
            if _mod_97(changed.replace(" ", "")) == 1:
                changed = changed[:3] + str((int(changed[3]) + 1) % 10) + changed[4:]
            return " ".join([changed, *rest])
    return None


def _ip(value: str) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return None
    if address.is_loopback or address.is_unspecified or any(address in net for net in _NOBODY):
        return None
    data = _bytes("ip", address.compressed)
    if address.version == 6:
        # `a::b` and `::2` are code more often than addresses.
        if len([group for group in value.split(":") if group]) < 3:
            return None
        return str(ipaddress.ip_address(int("20010db8", 16) << 96 | int.from_bytes(data[:8])))
    if address in _BENCHMARK or address.is_multicast or int(address) >> 28 == 15:
        return None
    return str(_BENCHMARK[int.from_bytes(data[:4]) % _BENCHMARK.num_addresses])


def _home(value: str) -> str | None:
    name = re.split(r"[\\/]", value)[-1]
    if name.lower() in _PLAIN_HOMES or re.fullmatch(r"user-[a-z]{4}", name):
        return None
    return value[: len(value) - len(name)] + "user-" + _same_shape("home", "aaaa", name)


def _key(value: str) -> str:
    prefix = _KEY_PREFIX.match(value)
    start = prefix.end() if prefix else 0
    return value[:start] + _same_shape("key", value[start:], value)


def _password(value: str) -> str:
    name, _, secret = value[:-1].rpartition(":")
    return f"{name}:{_same_shape('password', secret)}@"


def _pem(value: str) -> str:
    first, body, last = re.split(r"(?<=-----)(?!BEGIN)(.*)(?=-----END)", value, maxsplit=1, flags=re.DOTALL)
    return first + _same_shape("pem", body) + last


def _ssn(value: str) -> str | None:
    return "9" + _same_shape("ssn", value)[1:]


_KEY_PREFIX = re.compile(
    r"sk-ant-(?:api03-)?|sk-proj-|sk-|[sr]k_(?:live|test)_|github_pat_|gh[pousr]_|AKIA|ASIA|xox[abprs]-"
    r"|AIza|hf_|glpat-|npm_|pypi-|eyJ"
)
KINDS = (
    Kind(
        "private_key",
        ("PRIVATE KEY-----",),
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,20000}-----END [A-Z ]{0,30}PRIVATE KEY-----",
        _pem,
    ),
    Kind("jwt", ("eyJ",), r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}", _key),
    Kind(
        "api_key",
        (
            "sk-",
            "k_live_",
            "k_test_",
            "github_pat_",
            "gh",
            "AKIA",
            "ASIA",
            "xox",
            "AIza",
            "hf_",
            "glpat-",
            "npm_",
            "pypi-",
        ),
        r"\b(?:sk-[\w-]{20,}|[sr]k_(?:live|test)_\w{16,}|github_pat_\w{22,}|gh[pousr]_[A-Za-z0-9]{36,}"
        r"|A[KS]IA[0-9A-Z]{16}\b|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}"
        r"|npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,})",
        _key,
    ),
    Kind("password", ("://",), r"(?<=://)[^\s/:@'\"\\]{1,100}:[^\s/:@'\"\\]{1,100}@", _password),
    Kind("email", ("@",), r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b", _email),
    Kind("iban", (), r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", _iban),
    Kind(
        "card",
        (),
        r"(?<![\w.-])(?:\d{13,19}|\d{4}(?P<gap>[ -])\d{4}(?P=gap)\d{4}(?P=gap)\d{1,7}"
        r"|\d{4}[ -]\d{6}[ -]\d{5})(?![\w-]|\.\d)",
        _card,
    ),
    Kind("ssn", ("-",), r"(?<![\w.-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])", _ssn),
    Kind(
        "phone",
        ("-", "+", ")", ".", " "),
        r"(?<![\w.+-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]\d{2,8}){1,4}|\+\d{8,15}"
        r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[.-]\d{4})(?![\w-]|\.\d)",
        _phone,
    ),
    Kind("ipv6", (":",), r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])", _ip),
    Kind("ipv4", (".",), r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)", _ip),
    Kind(
        "home_path",
        ("home", "Users"),
        r"(?:/home/|/Users/|\b[A-Za-z]:(?:\\{1,4}|/)Users(?:\\{1,4}|/))[\w.-]{1,64}",
        _home,
    ),
)
_BY_NAME = {kind.name: kind for kind in KINDS}


@functools.cache
def _pattern(active: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{name}>{_BY_NAME[name].pattern})" for name in active))
