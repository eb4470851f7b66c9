"""How two cells of a table compare: WideSearch's preprocessing steps and metrics, by its names.

Two cells without any number, date or URL are compared as text; upstream takes them as equal whatever they say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

from ...errors import UserError

_A_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)%?")
_URL = re.compile(r"https?://[^\s|<>\"')\[\]]+")
_DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d %B %Y", "%B %d, %Y", "%B %d %Y", "%b %d, %Y", "%d %b %Y", "%m/%d/%Y")
_MONTHS = ("%Y-%m", "%B %Y", "%b %Y", "%Y")  # the first day stands for the whole
_NEAR_DAYS = 31
_NO_NUMBER = "NULL"


def same_text(one: str, other: str) -> bool:
    """Equal but for case, or the same number in two spellings (3 and 3.0)."""
    if one.casefold() == other.casefold():
        return True
    a, b = _number(one), _number(other)
    return a is not None and a == b


def _extract_number(cell: str) -> str:
    found = _A_NUMBER.search(cell.replace(",", ""))
    return found.group() if found else _NO_NUMBER


def _norm_str(cell: str) -> str:
    return "".join(cell.casefold().replace("*", "").split(" ")).strip()


def _norm_date(cell: str) -> str:
    found = _date(cell)
    return cell if found is None else found.isoformat()


def _number(cell: str) -> float | None:
    if not _A_NUMBER.fullmatch(cell):
        return None
    return float(cell[:-1]) / 100 if cell.endswith("%") else float(cell)


def _date(cell: str) -> date | None:
    for form in (*_DATES, *_MONTHS):
        try:
            return datetime.strptime(cell.strip(), form).date()
        except ValueError:
            continue
    return None


def _number_near(one: str, gold: str, share: float) -> bool:
    a, b = _number(one), _number(gold)
    if a is None or b is None:
        return a is b and same_text(one, gold)
    return abs(a - b) <= abs(b) * share


def _date_near(one: str, gold: str) -> bool:
    a, b = _date(one), _date(gold)
    if a is None or b is None:
        return a is b and same_text(one, gold)
    return abs((a - b).days) <= _NEAR_DAYS


def _url_match(one: str, gold: str) -> bool:
    a, b = ({urlsplit(url).netloc for url in _URL.findall(cell)} for cell in (one, gold))
    return a == b if a or b else same_text(one, gold)


def _near(one: str, gold: str, criterion: Any) -> bool:
    if isinstance(criterion, bool) or not isinstance(criterion, (int, float)) or criterion < 0:
        raise UserError(f"number_near needs a criterion such as 0.05, not {criterion!r}")
    return _number_near(one, gold, float(criterion))


PREPROCESS: Mapping[str, Callable[[str], str]] = {
    "extract_number": _extract_number,
    "norm_str": _norm_str,
    "norm_date": _norm_date,
}
METRICS: Mapping[str, Callable[[str, str, Any], bool]] = {
    "exact_match": lambda one, gold, criterion: same_text(one, gold),
    "in_match": lambda one, gold, criterion: one in gold,
    "number_near": _near,
    "date_near": lambda one, gold, criterion: _date_near(one, gold),
    "url_match": lambda one, gold, criterion: _url_match(one, gold),
}
"""Each compares an answer's cell with the gold one by the column's criterion."""
