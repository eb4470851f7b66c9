"""Addresses of people and machines in text: e-mail, IPv4, IPv6, MAC, and the user's name in home paths.

Stand-ins lie where nobody is: `example.com`, the network for benchmarks 198.18.0.0/15, 2001:db8::/32, locally
administered MACs that begin with 02:00:5e. What lies there already is left alone.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

from .redact_stand_ins import StandIns
from .redact_view import Find, View

_LOCAL = re.compile(r"[\w.+%-]{1,64}\Z")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9\u00c0-\u1fff-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w(-])")
_RESERVED = re.compile(r"(?:[\w-]+\.)*(?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$", re.IGNORECASE)
# `icon@2x.png`, `pkg@1.2.3-x.tgz`, `git@github.com:`: written like an address, and none.
_FILE_ENDINGS = ("css", "gif", "gz", "html", "jpeg", "jpg", "js", "json", "lock", "png", "svg", "tgz", "txt", "webp")
_AT = ("%40", "\\u0040", "&#64;", "&#x40;", "\uff20")
_ESCAPED_LOCAL = re.compile(r"(?:[\w.+-]|%2[bB]){1,64}\Z")

_BENCHMARK = ipaddress.ip_network("198.18.0.0/15")
_NOBODY = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")]
_IPV4 = re.compile(r"(?<![\w-])(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_VERSION = re.compile(r"(?:version|release|ver\.?|[=<>~!]=|[~^])[\s:\"']{0,4}\Z", re.IGNORECASE)
_COLONS = re.compile(r":[0-9a-fA-F]{0,4}:[0-9a-fA-F]{0,4}:")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:]|\.\d)")
_MAC = re.compile(
    r"(?<!\b[0-9A-Fa-f]{2}[:-])(?<!\w)[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])"
)
_DASHES = re.compile(r"-[0-9a-fA-F]{2}-[0-9a-fA-F]{2}-[0-9a-fA-F]{2}-[0-9a-fA-F]{2}-")
_NOBODYS_MAC = "02005e"

_HOMES = (  # with any number of backslashes where JSON escaped a separator
    re.compile(r"home(?<=/home)\\{0,16}/(\w[\w.-]{0,63})"),
    re.compile(r"Users(?<=[/\\]Users)(?:\\{1,16}|\\{0,16}/)(\w[\w.-]{0,63})"),
)
_PLAIN_HOMES = ("shared", "public", "default", "runner", "ubuntu", "user", "node", "app", "vscode")


def emails(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """E-mail addresses, also with the sign spelled `%40`, `\\u0040`, `&#64;` or in full width."""
    if "@" in view.shadow:
        yield from _around(view.shadow, "@", _LOCAL, stand_ins)
    for sign in _AT:
        if sign in view.text:
            yield from _around(view.text, sign, _ESCAPED_LOCAL, stand_ins)


def _around(text: str, sign: str, local: re.Pattern[str], stand_ins: StandIns) -> Iterator[Find]:
    at, done = text.find(sign), 0
    while at >= 0:
        after = at + len(sign)
        domain = _DOMAIN.match(text, after)
        name = domain and local.search(text, max(done, at - 64), at)
        if domain and name:
            # The letter of an escape such as `\\n` is no part of the name.
            start = name.start() + (name.start() > 0 and text[name.start() - 1] == "\\")
            changed = _email(text[start:at], domain.group(), sign, stand_ins)
            if changed is not None:
                done = domain.end()
                yield Find(start, done, "email", changed)
        at = text.find(sign, after)


def _email(name: str, domain: str, sign: str, stand_ins: StandIns) -> str | None:
    plain = unquote(name) if sign == "%40" else name
    ending = domain.rpartition(".")[2].lower()
    if _RESERVED.match(domain) or ending in _FILE_ENDINGS or plain in ("", "git"):
        return None
    changed = stand_ins.same_shape("email", plain, f"{plain}@{domain}".lower())
    return (quote(changed) if sign == "%40" else changed) + sign + "example.com"


def ipv4(view: View, start: int, end: int, stand_ins: StandIns) -> Iterator[Find]:
    """IPv4 addresses between two places of the shadow."""
    for match in _IPV4.finditer(view.shadow, start, end):
        changed = _ip(match.group(), stand_ins)
        if changed is not None and not _VERSION.search(view.shadow, max(0, match.start() - 12), match.start()):
            yield Find(match.start(), match.end(), "ipv4", changed)


def colon_addresses(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """IPv6 addresses, and MACs with colons or dashes."""
    text, done = view.shadow, 0
    for sign in _COLONS.finditer(text):
        if sign.start() < done:
            continue
        start = max(done, sign.start() - 4)
        if mac := _MAC.search(text, start, sign.start() + 20):
            done = mac.end()
            changed = _mac(mac.group(), stand_ins)
            if changed is not None:
                yield Find(mac.start(), mac.end(), "mac", changed)
        elif found := _IPV6.search(text, start, sign.start() + 41):
            done = max(done, found.end())
            changed = _ip(found.group(), stand_ins)
            if changed is not None:
                yield Find(found.start(), found.end(), "ipv6", changed)
    for sign in _DASHES.finditer(text):
        if mac := _MAC.search(text, max(0, sign.start() - 2), sign.start() + 17):
            changed = _mac(mac.group(), stand_ins)
            if changed is not None:
                yield Find(mac.start(), mac.end(), "mac", changed)


def _ip(value: str, stand_ins: StandIns) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return None
    if address.is_loopback or address.is_unspecified or any(address in net for net in _NOBODY):
        return None
    data = stand_ins.bytes("ip", address.compressed, 8)
    if address.version == 6:
        # `a::b` and `::2` are code more often than addresses.
        if len([group for group in value.split(":") if group]) < 3:
            return None
        return str(ipaddress.ip_address(int("20010db8", 16) << 96 | int.from_bytes(data[:8])))
    if address in _BENCHMARK or address.is_multicast or int(address) >> 28 == 15 or int(address) >> 24 == 0:
        return None
    if int(address) % 2**24 == 0:
        return None  # no machine's, but a release: 4.0.0.0
    return str(_BENCHMARK[int.from_bytes(data[:4]) % _BENCHMARK.num_addresses])


def _mac(value: str, stand_ins: StandIns) -> str | None:
    digits = value.replace(value[2], "").lower()
    # Digits alone are a time or a list; one digit throughout is nobody's.
    if digits.isdigit() or len(set(digits)) == 1 or digits.startswith(_NOBODYS_MAC):
        return None
    changed = _NOBODYS_MAC + stand_ins.bytes("mac", digits, 8).hex()[:6]
    changed = changed.upper() if value.upper() == value else changed
    return value[2].join(changed[n : n + 2] for n in range(0, 12, 2))


def homes(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """User names in home paths. Accounts that machines are delivered with stay."""
    for pattern in _HOMES:
        for match in pattern.finditer(view.text):
            name = match.group(1)
            if name.lower() not in _PLAIN_HOMES and not re.fullmatch(r"user-[a-z]{4}", name):
                changed = "user-" + stand_ins.same_shape("home", "aaaa", name)
                yield Find(match.start(1), match.end(1), "home_path", changed)
