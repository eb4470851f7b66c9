"""An OpenAI-compatible chat endpoint: one request, tried again where that may help, answers kept on disk.

Nothing is sent anywhere unless an endpoint is named. What is sent: the question, the accepted answers and the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError

_MOST_BYTES = 8 << 20  # of a reply
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask. Prices are USD per million tokens, None where unknown; `cache` is a folder, None for none."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    input_price: float | None = None
    output_price: float | None = None
    cache: Path | None = None
    attempts: int = 5
    wait_s: float = 1.0
    timeout_s: float = 120.0


@dataclass(slots=True)
class Spent:
    """What was asked so far: calls made, answers found on disk, tokens of the calls as the endpoint counted them."""

    calls: int = 0
    cached: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0  # calls whose reply says no tokens

    def cost(self, endpoint: Endpoint) -> float | None:
        """USD; None without prices, or where some call was not counted."""
        if endpoint.input_price is None or endpoint.output_price is None or self.uncounted:
            return None
        return (self.input_tokens * endpoint.input_price + self.output_tokens * endpoint.output_price) / 1e6


def endpoint(
    url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    input_price: float | None = None,
    output_price: float | None = None,
    cache: Path | None = None,
) -> Endpoint:
    """The endpoint that is named, else that of KVMILL_JUDGE_URL, KVMILL_JUDGE_MODEL and KVMILL_JUDGE_KEY.

    `cache`: the folder for replies; by default `judge` in the folder of KVMILL_CACHE. UserError if URL or model is
    missing, or the URL is none of HTTP.
    """
    from ..weights import cache_home

    url, model = url or os.environ.get("KVMILL_JUDGE_URL"), model or os.environ.get("KVMILL_JUDGE_MODEL")
    if not url or not model:
        raise UserError("the judge needs an endpoint and a model: set KVMILL_JUDGE_URL and KVMILL_JUDGE_MODEL")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"the judge's URL {url!r} must begin with http:// or https://")
    key = key or os.environ.get("KVMILL_JUDGE_KEY")
    return Endpoint(url.rstrip("/"), model, key, input_price, output_price, cache or cache_home() / "judge")


def ask(
    where: Endpoint, messages: Sequence[Mapping[str, str]], spent: Spent, sleep: Callable[[float], None] = time.sleep
) -> str:
    """The reply to `messages`, from disk if the same was asked before; counted in `spent`.

    UserError where the endpoint refuses, or still fails after all attempts.
    """
    body = {"model": where.model, "messages": [dict(message) for message in messages], "temperature": 0}
    name = hashlib.sha256(json.dumps([where.url, body], sort_keys=True).encode()).hexdigest()
    kept = where.cache / f"{name}.json" if where.cache else None
    if kept and (known := _read(kept)) is not None:
        spent.cached += 1
        return known
    found = _post(where, body, sleep)
    text = _text(found, where)
    spent.calls += 1
    _count(found.get("usage"), spent)
    if kept:
        _keep(kept, {"model": where.model, "reply": text, "usage": found.get("usage")})
    return text


def _post(where: Endpoint, body: Mapping[str, Any], sleep: Callable[[float], None]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {where.key}"} if where.key else {})}
    target = f"{where.url}/chat/completions"
    wait, failure = where.wait_s, ""
    for attempt in range(where.attempts):
        if attempt:
            sleep(min(wait, _LONGEST_WAIT_S))
            wait *= 2
        request = urllib.request.Request(target, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=where.timeout_s) as reply:
                return json.loads(reply.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            failure = f"{error.code} {error.reason}"
            said = error.read(200).decode(errors="replace")
            if error.code != 429 and error.code < 500:
                raise UserError(f"the judge at {target} refuses: {failure}: {said}") from None
            wait = max(wait, _seconds(error.headers.get("Retry-After")))
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
            failure = str(getattr(error, "reason", error))
    raise UserError(f"the judge at {target} failed {where.attempts} times, at last with: {failure}")


def _seconds(text: str | None) -> float:
    """A Retry-After in seconds; a date is as if nothing were said."""
    return float(text) if text and text.strip().isdigit() else 0.0


def _text(found: Any, where: Endpoint) -> str:
    try:
        text = found["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise UserError(f"the judge at {where.url} gave no chat completion: {json.dumps(found)[:200]}")
    return text


def _count(usage: Any, spent: Spent) -> None:
    counts = [
        usage.get(name) if isinstance(usage, Mapping) else None for name in ("prompt_tokens", "completion_tokens")
    ]
    if all(isinstance(count, int) for count in counts):
        spent.input_tokens += counts[0] or 0
        spent.output_tokens += counts[1] or 0
    else:
        spent.uncounted += 1


def _read(path: Path) -> str | None:
    """A kept reply; None if there is none, or its file is damaged (the question is then asked again)."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    reply = found.get("reply") if isinstance(found, Mapping) else None
    return reply if isinstance(reply, str) else None


def _keep(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)
