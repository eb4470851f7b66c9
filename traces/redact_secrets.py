"""Secrets in text: tokens of known shape, private keys, and values that stand behind a word such as `password`.

The token shapes are those that the providers document (their pages on key formats and on secret scanning). They are
own rules rather than a detector's because detectors are made for code in files: the best kept one, detect-secrets 1.5
with its default plugins, read 0.13 MB/s of agents' text and reported 13,083 finds in 200 messages without a secret.

Every token holds a run of twenty letters, digits, `-` and `_`; text is scanned once for such runs, and only these are
compared with the shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .redact_stand_ins import StandIns
from .redact_view import Find, View

# What a token begins with, and what must follow it.
_TOKENS = (
    (r"sk-ant-(?:api|admin|oat)\d\d-", r"[\w-]{20,}"),  # Anthropic
    (r"sk-(?:proj|svcacct|admin|or-v1|lf)-", r"[\w-]{20,}"),  # OpenAI, OpenRouter, Langfuse
    (r"sk-", r"[\w-]{20,}"),  # OpenAI's older keys, DeepSeek and others
    (r"gh[pousr]_", r"[A-Za-z0-9]{36,}"),  # GitHub
    (r"github_pat_", r"\w{22,}"),
    (r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|ffct|imt)-", r"[\w-]{20,}"),  # GitLab
    (r"(?:AKIA|ASIA|ABIA|ACCA)", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),  # AWS
    (r"xox[abeoprs]-", r"[\w-]{10,}"),  # Slack
    (r"xapp-\d-", r"[\w-]{20,}"),
    (r"[sr]k_(?:live|test)_", r"\w{16,}"),  # Stripe
    (r"whsec_", r"[A-Za-z0-9]{24,}"),
    (r"AIza", r"[\w-]{35}"),  # Google
    (r"GOCSPX-", r"[\w-]{20,}"),
    (r"hf_", r"[A-Za-z0-9]{30,}"),  # Hugging Face
    (r"api_org_", r"[A-Za-z0-9]{30,}"),
    (r"npm_", r"[A-Za-z0-9]{36}"),
    (r"pypi-", r"[\w-]{50,}"),
    (r"rubygems_", r"[0-9a-f]{48}"),
    (r"dckr_(?:pat|oat)_", r"[\w-]{20,}"),  # Docker
    (r"do[opr]_v1_", r"[0-9a-f]{64}"),  # DigitalOcean
    (r"shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}"),  # Shopify
    (r"sq0(?:atp|csp)-", r"[\w-]{22,}"),  # Square
    (r"dapi", r"[0-9a-f]{32}(?:-\d)?(?!\w)"),  # Databricks
    (r"(?:SK|AC)", r"[0-9a-f]{32}(?!\w)"),  # Twilio
    (r"lin_(?:api|oauth)_", r"[A-Za-z0-9]{40,}"),  # Linear
    (r"(?:secret|ntn)_", r"[A-Za-z0-9]{40,}"),  # Notion
    (r"(?:gsk|fw|nvapi|pplx|xai|tvly|csk)[_-]", r"(?:dev-|prod-)?[A-Za-z0-9_-]{24,}"),  # inference and search services
    (r"r8_", r"[A-Za-z0-9]{37}"),  # Replicate
    (r"lsv2_(?:pt|sk)_", r"[0-9a-f]{32}_[0-9a-f]{10}"),  # LangSmith
    (r"(?:glsa|glc)_", r"[A-Za-z0-9+/=_]{32,}"),  # Grafana
    (r"NRAK-", r"[A-Z0-9]{27}"),  # New Relic
    (r"sntry[su]_", r"[\w-]{40,}"),  # Sentry
    (r"pul-", r"[0-9a-f]{40}(?!\w)"),  # Pulumi
    (r"pscale_(?:tkn|pw|oauth)_", r"[\w-]{32,}"),  # PlanetScale
    (r"PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    (r"figd_", r"[\w-]{30,}"),  # Figma
    (r"sb(?:p|_secret)_", r"[\w-]{22,}"),  # Supabase
    (r"sgp_", r"[0-9a-f_]{40,}"),  # Sourcegraph
    (r"EZ[AT]K", r"[A-Za-z0-9]{54}"),  # EasyPost
    (r"ATATT3", r"[\w=-]{60,}"),  # Atlassian
    (r"AGE-SECRET-KEY-1", r"[0-9A-Z]{50,}"),
    (r"atlasv1-", r"[\w-]{40,}"),
)
_LOOSE = re.compile(r"(?:sk|gsk|fw|nvapi|pplx|xai|tvly|csk)[_-]\Z")  # words without a digit may begin like these
_SHAPES = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(start + rest for start, rest in _TOKENS) + ")")
_STARTS = re.compile("|".join(start for start, _ in _TOKENS))
# Runs are found in bytes: letters, digits, `-` and `_` become one byte, all else another.
_IN_RUN, _SHORTEST = b"x", 20
_CLASSES = bytes(_IN_RUN[0] if chr(n).isascii() and (chr(n).isalnum() or chr(n) in "-_") else 32 for n in range(256))
_REST_OF_RUN = re.compile(r"[\w-]*")
_DIGIT = re.compile(r"[0-9]")
# Tokens with dots or colons between their runs: a literal, how far before it they begin, and their shape.
_DOTTED = (
    ("eyJ", (0,), re.compile(r"(?<![A-Za-z0-9])(eyJ)[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"), "jwt"),
    ("SG.", (0,), re.compile(r"(?<![A-Za-z0-9])(SG\.)[\w-]{20,24}\.[\w-]{39,50}"), "api_key"),
    (":AA", (8, 9, 10), re.compile(r"(?<!\d)(\d{8,10}:AA)[\w-]{32,33}(?![\w-])"), "api_key"),
    ("/services/T", (0,), re.compile(r"(/services/T)[A-Z0-9]{6,12}/B[A-Z0-9]{6,12}/[A-Za-z0-9]{18,30}"), "api_key"),
    ("/api/webhooks/", (0,), re.compile(r"(/api/webhooks/\d{15,20}/)[\w-]{50,90}"), "api_key"),
    ("ya29.", (0,), re.compile(r"(?<![A-Za-z0-9])(ya29\.)[\w-]{20,}"), "api_key"),
    ("hvs.", (0,), re.compile(r"(?<![A-Za-z0-9])(hvs\.)[\w-]{20,}"), "api_key"),
    ("dp.", (0,), re.compile(r"(?<![A-Za-z0-9])(dp\.(?:pt|st|ct|scim|audit)\.)[\w-]{40,}"), "api_key"),
    ("-us", (32,), re.compile(r"(?<![A-Za-z0-9])()[0-9a-f]{32}-us\d{1,2}(?!\w)"), "api_key"),
)
_PEM = re.compile(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----)([^-\x1e]{0,20000})"
    r"(-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?"
)
_IN_URL = re.compile(r"://([^\s/:@'\"\\]{0,100}):([^\s/'\"\\]{1,100})@")

# Words before a secret. What stands behind a colon or an equals sign is the secret, if it looks like one.
_PASSWORDS = ("passw", "passphrase", "pwd")
_KEYWORDS = (*_PASSWORDS, "secret", "token", "apikey", "api_key", "api-key", "access_key", "accesskey", "access-key")
_KEYWORDS += ("private_key", "account_key", "accountkey", "signing_key", "encryption_key", "sharedaccess")
_ASSIGNED = re.compile(
    r"(?:(passw(?:or)?d|passphrase|pwd)|secret(?:[_-]?access)?(?:[_-]?key|[_-]?token)?|token|api[_-]?key|access[_-]?key"
    r"|private_key|account_?key|signing_key|encryption_key|sharedaccess(?:key|signature))\d{0,2}"
    r"(?:[\"']{0,8}\s{0,3}(?:=>|:=|[:=])\s{0,3}"
    r"|>(?=[^<>\s]{4,200}</)|(?:(?<=--password)|(?<=-token)|(?<=-key)|(?<=-secret)) )"  # XML, arguments of programs
    r"(?:([\"'`])\2{0,7}([^\s\"'`]{4,200})\2|([^\s\"'`,;&<>(){}\[\]|]{6,200})(?![(\w]))"
)
_AUTHORISED = re.compile(r"(?:bearer|basic) {1,3}([a-z0-9._~+/=-]{16,4000})")
_PLACEHOLDER = re.compile(
    r"\W*(?:your|my[_-]|the[_-]|example|placeholder|change|redacted|hidden|none|null|true|false|undefined|string|xxx"
    r"|\*\*|\.\.\.|\$|%|<|\{)"
)
_NAME_OF_CODE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")
_SHORTEST_PASSWORD, _SHORTEST_SECRET = 6, 16


def secrets(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """Everything of this file, tokens of known shape first."""
    text, shadow = view.text, view.shadow
    if "PRIVATE KEY" in text:
        for match in _PEM.finditer(text):
            yield _changed(view, match.start(2), match.end(2), "private_key", stand_ins)
    for begin, end in _runs(shadow):
        for match in _SHAPES.finditer(shadow, begin, end + 80):
            if match.start() >= end:  # of the next run, and cut off here
                break
            begun = _STARTS.match(shadow, match.start())
            start = begun.end() if begun else match.start()
            if _DIGIT.search(shadow, start, match.end()) or not _LOOSE.search(shadow, match.start(), start):
                yield _changed(view, start, match.end(), "api_key", stand_ins)
    for literal, before, pattern, kind in _DOTTED:
        at = shadow.find(literal)
        while at >= 0:
            starts = (at - back for back in before if back <= at)
            match = next((found for start in starts if (found := pattern.match(shadow, start))), None)
            if match:
                yield _changed(view, match.end(1), match.end(), kind, stand_ins)
                at = shadow.find(literal, match.end())
            else:  # nothing further inside this run can match either
                at = shadow.find(literal, _REST_OF_RUN.match(shadow, at + len(literal)).end())  # pyright: ignore[reportOptionalMemberAccess]
    if "://" in text:
        for match in _IN_URL.finditer(text):
            yield _changed(view, match.start(2), match.end(2), "password", stand_ins)
    yield from _assigned(view, stand_ins)


def _runs(text: str) -> Iterator[tuple[int, int]]:
    classes = text.encode("latin-1", "replace").translate(_CLASSES)
    at = classes.find(_IN_RUN * _SHORTEST)
    while at >= 0:
        end = classes.find(b" ", at)
        end = len(text) if end < 0 else end
        yield at, end
        at = classes.find(_IN_RUN * _SHORTEST, end)


def _assigned(view: View, stand_ins: StandIns) -> Iterator[Find]:
    low = view.low
    for word in _KEYWORDS:
        at = low.find(word)
        while at >= 0:
            match = _ASSIGNED.match(low, at)
            if match and _looks_secret(match):
                group = 3 if match.group(3) else 4
                kind = "password" if match.group(1) else "secret"
                yield _changed(view, match.start(group), match.end(group), kind, stand_ins)
            at = low.find(word, match.end() if match else at + len(word))
    if "bearer " in low or "basic " in low:
        for match in _AUTHORISED.finditer(low):
            if _DIGIT.search(match.group(1)):
                yield _changed(view, match.start(1), match.end(1), "secret", stand_ins)


def _looks_secret(match: re.Match[str]) -> bool:
    """Long enough, with digits among letters, and no name of a variable or placeholder."""
    quoted, value = match.group(3) is not None, match.group(3) or match.group(4)
    if _PLACEHOLDER.match(value) or not _DIGIT.search(value):
        return False
    if not match.group(1):
        return len(value) >= _SHORTEST_SECRET and not value.isdigit() and not _NAME_OF_CODE.fullmatch(value)
    return quoted or (len(value) >= _SHORTEST_PASSWORD and not value.isdigit() and not _NAME_OF_CODE.fullmatch(value))


def _changed(view: View, start: int, end: int, kind: str, stand_ins: StandIns) -> Find:
    return Find(start, end, kind, stand_ins.same_shape("secret", view.text[start:end]))
