"""A capacity answer to take along: one JSON object, or one HTML file that needs nothing else and asks for nothing.

The file carries its style and its pictures (SVG, drawn here); its own policy forbids the browser every request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..console import plain
from ..replay.statistics import FEW
from ..simulator.sentence import DRAWN
from . import capacity_answer as said
from . import theme

Row = Mapping[str, Any]
ORIGINS = (
    ("simulated", "from the queueing simulation of the fleet"),
    ("measured", "from a replay of recorded traces through the model that is named"),
    ("estimated", "computed from a formula on the target's figures, not measured there"),
    ("assumed", "taken as given"),
)
_STYLE = f"""
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
.answer {{ border-left: 4px solid {theme.BLUE}; padding: .4rem 1rem; font-size: 1.1rem; }}
.wide {{ overflow-x: auto; margin: .5rem 0 1.5rem; }}
table {{ border-collapse: collapse; }}
th, td {{ border-bottom: 1px solid {theme.PALE}; padding: .2rem .7rem; text-align: left; vertical-align: top; }}
td {{ overflow-wrap: break-word; }}
pre {{ overflow-x: auto; border: 1px solid {theme.PALE}; padding: .6rem; white-space: pre-wrap; }}
svg text {{ font: 13px system-ui, sans-serif; fill: currentColor; }}
.small {{ font-size: .85rem; }}
"""
_FORBIDS = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_CODE = re.compile("`([^`]+)`")
_PLACE = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/'\"<>]+/)+(?=[^\s/'\"<>])")
_QUOTED_PLACE = re.compile(r"(?<=')~?/(?:[^'/]+/)+(?=[^'/]+')")
_BAR, _NAME, _WIDTH = 30, 300, 860


def as_json(found: Row) -> str:
    """The answer as JSON; what was not measured is null."""
    return json.dumps(plain(found), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def as_html(found: Row) -> str:
    """The answer as one HTML file.

    `found` is what `as_json` writes: `answer`, `workload`, `model`, `gpu`, `slo`, `plans`, `assumptions`, `command`,
    `made` (when, UTC) and where they are known `other_shapes`, `runs`. The report is for others, so that files are
    named without the folders of this machine.
    """
    found = _without_places(plain(found))
    rows, slo = found["plans"], found.get("slo") or {}
    last = rows[-1] if rows else {}
    terms = ", ".join(f"{key} ≤ {limit:g} s" for key, limit in slo.items())
    parts = [
        f"<h1>{escape(_title(found))}</h1>",
        f'<p class="small">{escape(terms)} · made {escape(str(found.get("made") or ""))} UTC by kvmill</p>',
        f'<p class="answer">{_words(found.get("answer") or "There is no answer in one sentence.")}</p>',
        _section("GPUs needed (simulated)", bars(rows)),
        _section("Figures", _table(_figures(rows))),
        _section("Latencies at that size (simulated)", _table(said.latency_rows(rows))),
        _section("Why not fewer? (simulated)", _fewer(rows, slo)),
        _section("What the saving is made of (simulated)", _table(said.effect_rows(last)) if last else ""),
        _section("If the workload were shaped otherwise (simulated)", _table(found.get("other_shapes") or [])),
        _section("Quality (measured)", _table(_quality(rows))),
        _section("Assumed and estimated", _table(assumed(found))),
        _section("The same from the command line", f"<pre>{escape(str(found.get('command') or ''))}</pre>"),
        '<p class="small">' + "; ".join(f"<b>{word}</b>: {meaning}" for word, meaning in ORIGINS) + ".</p>",
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_FORBIDS}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(_title(found))}</title>'
        f"<style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(filter(None, parts))}</body></html>\n'


def assumed(found: Row) -> list[dict[str, str]]:
    """What an answer rests on that was not measured for it, a row each."""
    rows = [
        {"what": name.replace("_", " "), "value": str(item)}
        for name, value in (found.get("assumptions") or {}).items()
        for item in (value if isinstance(value, list) else [value])
    ]
    if found.get("price_per_hour") is not None:
        price = f"{found['price_per_hour']:g} USD per GPU-hour ({found.get('price_source') or 'source unknown'})"
        rows.append({"what": "price", "value": price})
    if found.get("contexts"):
        spans = ", ".join(f"{q} {tokens:,} tokens" for q, tokens in found["contexts"].items())
        rows.append({"what": "contexts", "value": spans})
    return rows


def bars(rows: Sequence[Row]) -> str:
    """GPUs per policy as bars with their intervals, as SVG; empty where nothing was found."""
    known = [row for row in rows if row.get("gpus")]
    most = max((row.get("gpus_high") or row["gpus"] for row in known), default=0)
    if not most:
        return ""
    scale, drawn = (_WIDTH - _NAME - 60) / most, []
    for n, row in enumerate(known):
        y, width = n * _BAR, row["gpus"] * scale
        drawn.append(
            f'<text x="{_NAME - 8}" y="{y + 19}" text-anchor="end">{escape(_cut(row["policy"]))}</text>'
            f'<rect x="{_NAME}" y="{y + 5}" width="{width:.1f}" height="20" fill="{_colour(row)}"/>'
        )
        low, high = row.get("gpus_low"), row.get("gpus_high")
        if low is not None and high is not None:
            drawn.append(
                f'<line x1="{_NAME + low * scale:.1f}" x2="{_NAME + high * scale:.1f}" y1="{y + 15}" y2="{y + 15}" '
                f'stroke="{theme.ORANGE}" stroke-width="3"/>'
            )
        end = _NAME + max(width, (high or 0) * scale)
        drawn.append(f'<text x="{end + 6:.1f}" y="{y + 19}">{row["gpus"]}</text>')
    height = len(known) * _BAR
    label = escape("GPUs needed: " + ", ".join(f"{row['policy']} {row['gpus']}" for row in known), quote=True)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _title(found: Row) -> str:
    return f"{found.get('workload')}: {found.get('model')} on {str(found.get('gpu')).upper()}"


def _colour(row: Row) -> str:
    return theme.GREY if row["policy"] == "full" else theme.BLUE


def _cut(text: str, most: int = 42) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(c))}</td>" for c in columns) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return said.NOT
    return f"{value:,.4g}" if isinstance(value, float) else _words(value)


def _words(text: Any) -> str:
    """Text as HTML, what stands in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(str(text)))


def _without_places(found: Any) -> Any:
    """The same with every absolute path cut to its last part."""
    if isinstance(found, Mapping):
        return {key: _without_places(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_without_places(value) for value in found]
    return _PLACE.sub("", _QUOTED_PLACE.sub("", found)) if isinstance(found, str) else found


def _figures(rows: Sequence[Row]) -> list[dict[str, str]]:
    """A line per figure, a column per policy."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        for figure in said.figures(row):
            value = f"{figure.value} ({figure.note})" if figure.note else figure.value
            lines.setdefault(figure.label, {"figure": figure.label})[row["policy"]] = value
        binds = lines.setdefault("binds", {"figure": "Binding constraint · simulated"})
        binds[row["policy"]] = row.get("binding_constraint") or said.NOT
    return list(lines.values())


def _fewer(rows: Sequence[Row], slo: Mapping[str, float]) -> str:
    lines = "".join(f"<li>{escape(row['policy'])}: {_words(said.why_not_fewer(row, slo))}</li>" for row in rows)
    return f"<ul>{lines}</ul>" + _table(said.size_rows(rows, slo)) if lines else ""


def _quality(rows: Sequence[Row]) -> list[dict[str, str]]:
    """A line per figure, a column per policy, as `_figures`."""
    told = [
        {
            "measured with": row.get("quality_model"),
            "trajectories": _trajectories(row.get("quality_n"), row.get("quality_until_decided")),
            row.get("quality_of") or "accuracy": _share(row.get("answer_accuracy")),
            "minus full, in points (95 % interval)": _points(row),
            "extra turns": _share(row.get("extra_turns")),
            "extra turns from": row.get("extra_turns_source"),
        }
        for row in rows
    ]
    lines = dict.fromkeys(line for column in told for line in column)
    return [
        {"figure": line}
        | {row["policy"]: str(column.get(line) or said.NOT) for row, column in zip(rows, told, strict=True)}
        for line in lines
    ]


def _trajectories(count: int | None, until_decided: bool | None) -> str | None:
    if count is None:
        return None
    few = f"{count} (few: see the interval)" if count < FEW else str(count)
    return f"{few}, {DRAWN}" if until_decided else few


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _points(row: Row) -> str | None:
    """A paired difference of shares, and its interval where there is one."""
    middle, low, high = (row.get(key) for key in ("difference", "difference_low", "difference_high"))
    if middle is None:
        return None
    return f"{100 * middle:+.1f}" + ("" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})")
