"""Who may do what: the token, the places that may be read, the audit log, and cells that no spreadsheet obeys.

The token comes from a file or a variable, never from a URL, and is kept as a hash. Without one the dashboard serves
this machine only, and everybody on it is let in. Checked where data are read and jobs are submitted, not by hiding.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import ipaddress
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from .job import now

TOKEN, TOKEN_FILE, ROOTS = "KVMILL_TOKEN", "KVMILL_TOKEN_FILE", "KVMILL_INPUT_ROOTS"
AUDIT = "audit.jsonl"
LEAST_TOKEN = 16
_SEPARATORS = re.compile(r"[,=|()]")
_BETWEEN_ROOTS = re.compile(r":(?!//)")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class Refused(UserError):
    """The token is missing or wrong, or a place may not be read."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks: a name for the audit log, and whether the token was shown (now, or before in this session)."""

    name: str
    verified: bool


@dataclass(frozen=True, slots=True)
class Access:
    """What the environment allows. `roots` are folders and URI prefixes that may be read, besides the store."""

    store: Path
    roots: tuple[str, ...] = ()
    token_sha256: bytes | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, store: Path) -> Access:
        """From KVMILL_TOKEN or KVMILL_TOKEN_FILE, and KVMILL_INPUT_ROOTS (as PATH is separated). UserError if bad."""
        token = read_token()
        return cls(
            store=store.resolve(),
            roots=tuple(split_roots(os.environ.get(ROOTS, ""))),
            token_sha256=None if token is None else hashlib.sha256(token.encode()).digest(),
        )

    @property
    def needed(self) -> bool:
        """Whether a token must be shown."""
        return self.token_sha256 is not None

    def matches(self, given: str | None) -> bool:
        """Whether this is the token; takes as long for a near miss as for a far one. True where none is needed."""
        if self.token_sha256 is None:
            return True
        return hmac.compare_digest(
            self.token_sha256, hashlib.sha256((given or "").encode(errors="surrogatepass")).digest()
        )

    def require(self, visitor: Visitor) -> None:
        """Refused unless the visitor has shown the token, where one is needed."""
        if self.needed and not visitor.verified:
            raise Refused("a token is needed: give the one that the dashboard was started with")

    def require_inside(self, words: Iterable[str], cwd: Path) -> None:
        """Refused if any word names a place outside the store and the input roots.

        Words are values or `--flag=value`; lists inside them are looked at item by item. Relative paths begin at `cwd`.
        """
        for word in words:
            value = word.partition("=")[2] if word.startswith("--") else word
            for part in {value, *_SEPARATORS.split(value)}:
                if part and not self._inside(part.strip(), cwd):
                    raise Refused(
                        f"{part}: outside of what may be read here; upload the file, or have its folder added to "
                        f"{ROOTS}"
                    )

    def _inside(self, part: str, cwd: Path) -> bool:
        if "://" in part or "::" in part:
            return ".." not in part and "::" not in part and any(_below(part, root) for root in self.roots)
        if "\0" in part:
            return False
        try:
            path = (cwd / Path(part).expanduser()).resolve()
        except (OSError, RuntimeError):  # names too long, users that do not exist
            return False
        places = [self.store, *(Path(root).expanduser().resolve() for root in self.roots if "://" not in root)]
        return any(path.is_relative_to(place) for place in places)


def _below(uri: str, root: str) -> bool:
    return "://" in root and (uri + "/").startswith(root.rstrip("/") + "/")


def split_roots(text: str) -> list[str]:
    """The places of KVMILL_INPUT_ROOTS: `/data:s3://bucket/traces` are two."""
    return [root for root in _BETWEEN_ROOTS.split(text) if root]


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token() -> str | None:
    """The token of the environment, None where there is none. UserError for an unreadable file or a weak token."""
    where = os.environ.get(TOKEN_FILE)
    if where:
        try:
            token = Path(where).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"token file {where} cannot be read ({error})") from None
        origin = where
    else:
        token, origin = os.environ.get(TOKEN, "").strip(), TOKEN
        if not token:
            return None
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"the token of {origin} cannot be used: give at least {LEAST_TOKEN} printable characters without spaces, "
            "as `python -c 'import secrets; print(secrets.token_urlsafe(32))'` prints them"
        )
    return token


def audit(store: Path, who: str, what: str, **details: Any) -> None:
    """Add a line to the store's audit log: when, who, what, and details. The caller passes no secrets."""
    line = json.dumps({"when": now(), "who": who, "what": what, **details}, allow_nan=False) + "\n"
    store.mkdir(parents=True, exist_ok=True)
    # One write to a file opened for appending: lines of several processes do not mix.
    handle = os.open(store / AUDIT, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def safe_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a heading. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out)  # ends lines with CR and LF, and so quotes cells that hold either
    writer.writerow([_harmless(column) for column in columns])
    writer.writerows([[_harmless(row.get(column)) for column in columns] for row in rows])
    return out.getvalue()


def _harmless(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    return "'" + text if text.startswith(_FORMULA) else text
