"""Is tonight's replay worse than its baseline? One verdict per policy and family, paired by trajectory. No torch.

A loss blocks if its point estimate is above the metric's margin, its paired 95 % bootstrap interval excludes zero, and
its one-sided p, corrected by Holm over all tests of the night, is at most 2.5 %, one tail of such an interval. Without
the correction 34 to 53 % of the clean nights simulated in `tests/replay/test_gate_false_alarms.py` would block, with
it 1 to 2 %. The p is Student's on paired differences; two sides drawn alike differ symmetrically, which that test
stands well.

What is no sample needs no test: a cell that fails now, rows that appear or go, a peak above the promise, and other
tokens kept under the same policy and model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .gate_nouns import (
    CATEGORIES,
    FULL,
    INSUFFICIENT,
    OK,
    REGRESSION,
    ROWS_ADDED,
    ROWS_REMOVED,
    STATUS_CHANGE,
    Cell,
    Finding,
    Pair,
    Rules,
    Side,
)
from .gate_tests import judged, tests
from .statistics import FEW, holm

_NAMED = 3  # trajectories that a detail spells out
_LEAST = f"fewer than {FEW} decide nothing"


def gate(
    old: Side, new: Side, rules: Rules | None = None, moved: Mapping[tuple[str, str], float] | None = None
) -> list[Finding]:
    """The findings of tonight (`new`) against the baseline, blocking ones first; each pair of tonight has at least one.

    `moved`: by policy and trajectory, the share of kept rows that are other tokens than in the baseline.
    """
    rules = rules or Rules()
    found: list[Finding] = []
    tested: list[Finding] = []
    for pair in sorted({*old.cells, *new.cells}):
        before, now = old.cells.get(pair, {}), new.cells.get(pair, {})
        rows = _row_set(pair, before, now, old.promised, new.promised)
        found += rows or _policy_set(pair, old, new)
        found += _statuses(pair, before, now)
        both = sorted(t for t in before.keys() & now.keys() if before[t].status == now[t].status == "ok")
        found += _peak(pair, before, now, both, rules)
        found += _promise(pair, now, new.cells.get((FULL, pair[1]), {}), rules)
        found += _moved(pair, both, moved or {}, rules)
        if not now:
            continue
        if len(both) < FEW:
            found.append(
                Finding(*pair, INSUFFICIENT, f"{len(both)} trajectories worked in both runs; {_LEAST}", n=len(both))
            )
            continue
        mine, lost = tests(pair, before, now, both, rules)
        if not mine and not lost:
            found.append(Finding(*pair, INSUFFICIENT, "nothing that is tested was measured in both runs", n=len(both)))
        tested += mine
        found += lost
    corrected = holm([finding.p or 0.0 for finding in tested])
    found += [judged(finding, p) for finding, p in zip(tested, corrected, strict=True)]
    return in_order(found)


def in_order(found: Iterable[Finding]) -> list[Finding]:
    """Blocking findings first, then by category; an OK of one metric is dropped where the pair has another row."""
    loud = [finding for finding in found if finding.category != OK or finding.metric is None]
    said = {(finding.policy, finding.family) for finding in loud}
    quiet: dict[Pair, list[Finding]] = {}
    for finding in found:
        if finding.category == OK and finding.metric is not None and (finding.policy, finding.family) not in said:
            quiet.setdefault((finding.policy, finding.family), []).append(finding)
    rows = loud + [
        Finding(*pair, OK, "; ".join(finding.detail for finding in group), n=group[0].n)
        for pair, group in quiet.items()
    ]
    rank = {category: i for i, category in enumerate(CATEGORIES)}
    return sorted(rows, key=lambda f: (not f.blocks, rank[f.category], f.policy, f.family, f.metric or ""))


def _row_set(
    pair: Pair,
    before: Mapping[str, Cell],
    now: Mapping[str, Cell],
    old_promised: frozenset[str],
    new_promised: frozenset[str],
) -> list[Finding]:
    gone = sorted((before.keys() & old_promised) - now.keys())
    fresh = sorted((now.keys() & new_promised) - before.keys())
    out = []
    if gone:
        detail = f"{len(gone)} trajectories of the baseline are missing: {_listed(gone)}"
        out.append(Finding(*pair, ROWS_REMOVED, detail, True, n=len(gone)))
    if fresh:
        detail = f"{len(fresh)} trajectories that the baseline lacks: {_listed(fresh)}"
        out.append(Finding(*pair, ROWS_ADDED, detail, True, n=len(fresh)))
    return out


def _policy_set(pair: Pair, old: Side, new: Side) -> list[Finding]:
    """A policy that only one run has: also where no trajectory is promised to be there again."""
    had, has = ({policy for policy, _ in side.cells} for side in (old, new))
    if pair[0] in had and pair[0] not in has:
        return [Finding(*pair, ROWS_REMOVED, "the policy was not replayed tonight", True, n=len(old.cells[pair]))]
    if had and pair[0] not in had:
        return [Finding(*pair, ROWS_ADDED, "the policy was not replayed in the baseline", True, n=len(new.cells[pair]))]
    return []


def _statuses(pair: Pair, before: Mapping[str, Cell], now: Mapping[str, Cell]) -> list[Finding]:
    shared = sorted(before.keys() & now.keys())
    broken = [t for t in shared if before[t].status == "ok" and now[t].status != "ok"]
    mended = [t for t in shared if before[t].status != "ok" and now[t].status == "ok"]
    out = []
    if broken:
        why = next((now[t].error for t in broken if now[t].error), None) or "no reason was stored"
        detail = f"{len(broken)} cells that worked are now {now[broken[0]].status}: {_listed(broken)}: {why}"
        out.append(Finding(*pair, STATUS_CHANGE, detail, True, n=len(broken)))
    if mended:
        detail = f"{len(mended)} cells that did not work do now: {_listed(mended)}"
        out.append(Finding(*pair, STATUS_CHANGE, detail, n=len(mended)))
    return out


def _peak(
    pair: Pair, before: Mapping[str, Cell], now: Mapping[str, Cell], both: Sequence[str], rules: Rules
) -> list[Finding]:
    pairs = [(b, n) for b, n in ((before[t].peak, now[t].peak) for t in both) if b is not None and n is not None]
    lost = [t for t in both if before[t].peak is not None and now[t].peak is None]
    detail = f"peak KV of {len(lost)} trajectories is no longer measured: {_listed(lost)}"
    out = [Finding(*pair, ROWS_REMOVED, detail, True, "kv_tokens_peak", len(lost))] if lost else []
    if not pairs:
        return out
    was, held = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    if not was or held / was - 1 <= rules.peak:
        return out
    detail = f"peak KV {was:,.0f} → {held:,.0f} tokens ({held / was - 1:+.1%}; promised at most {rules.peak:+.1%})"
    return [
        *out,
        Finding(
            *pair, REGRESSION, detail, True, "kv_tokens_peak", len(pairs), was, held, held / was - 1, margin=rules.peak
        ),
    ]


def _promise(pair: Pair, now: Mapping[str, Cell], full: Mapping[str, Cell], rules: Rules) -> list[Finding]:
    limit = rules.peak_share.get(pair[0])
    if limit is None:
        return []
    pairs = [(now[t].peak, full[t].peak) for t in now.keys() & full.keys()]
    known = [(mine, whole) for mine, whole in pairs if mine is not None and whole]
    if not known:
        detail = f"promised at most {limit:.1%} of full's peak KV, but no trajectory has the peak of both"
        return [Finding(*pair, INSUFFICIENT, detail, metric="peak_share", n=0, margin=limit)]
    share = sum(mine for mine, _ in known) / sum(whole for _, whole in known)
    if share <= limit:
        return []
    detail = f"peak KV is {share:.1%} of full's; promised at most {limit:.1%}"
    return [
        Finding(*pair, REGRESSION, detail, True, "peak_share", len(known), now=share, loss=share - limit, margin=limit)
    ]


def _moved(pair: Pair, both: Sequence[str], moved: Mapping[tuple[str, str], float], rules: Rules) -> list[Finding]:
    shares = [moved[pair[0], t] for t in both if (pair[0], t) in moved]
    if rules.kept is None or not shares:
        return []
    mean = sum(shares) / len(shares)
    if mean <= rules.kept:
        return []
    detail = f"keeps other tokens than the baseline: {mean:.1%} of its rows moved (margin {rules.kept:.1%})"
    return [Finding(*pair, REGRESSION, detail, True, "kept", len(shares), now=mean, loss=mean, margin=rules.kept)]


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more
