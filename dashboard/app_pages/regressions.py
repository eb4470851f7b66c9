"""Regressions: what the nights found per policy and family, and what differs between two runs, down to the turn."""

import streamlit as st

from kvmill.dashboard import charts_compare, charts_gates, queries, queries_compare, queries_gates
from kvmill.dashboard.access import safe_csv
from kvmill.dashboard.charts_gates import SIDES, VERDICTS
from kvmill.dashboard.parts import damage_shown, legend, linked, linked_replay, open_store, rows_shown
from kvmill.dashboard.said import plain

FIGURES = {
    "nll": "NLL (nats per token)",
    "delta_nll": "ΔNLL against full (nats per token)",
    "kl": "KL against full (nats per token)",
    "answer_accuracy": "answer accuracy",
    "answer_ll": "log p(right answer) (nats)",
    "top1_agreement": "top-1 agreement with full",
    "kv_tokens_peak": "peak KV (tokens)",
}
OF_TURNS = FIGURES | {"kv_tokens": "KV after the turn (tokens)", "compactions": "compactions"}
EVERY_TURN = OF_TURNS | {
    "ttft_s": "time to first token (s)",
    "prefill_s": "prefill (s)",
    "compaction_s": "compaction (s)",
    "decode_s": "decode (s)",
}
PAGE = "regressions"
EVERY, MOST_NAMED = "all policies and families", 3
SHARES = ("answer_accuracy", "top1_agreement")

store = open_store()
st.title("Regressions")
with damage_shown(store):
    nights = queries_gates.gates(store)
    runs = queries_compare.replays(store)
    night = queries_gates.night_of(store, nights[-1]["run"]) if nights else {}

st.subheader("Nights")
if nights:
    newest = [row for row in nights if row["run"] == nights[-1]["run"]]
    spoken = f"Newest night, {newest[0]['night']} UTC, run `{newest[0]['run']}`: {plain(night['verdict'])}."
    bad = [row for row in newest if row["blocks"] or row["category"] == "INSUFFICIENT"]
    named = "; ".join(
        f"{row['category']} of {plain(row['policy'])} on {plain(row['family'])}: {plain(row['detail'])}"
        for row in bad[:MOST_NAMED]
    )
    more = f"; and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    if night["verdict"] == "green":
        st.success(spoken, icon=":material/check:")
    elif any(row["blocks"] for row in bad):
        st.error(f"{spoken} {named}{more}.", icon=":material/error:")
    else:
        st.warning(f"{spoken} {named}{more}" + ("." if bad else ""), icon=":material/warning:")
    lines = {f"{row['policy']} · {row['family']}": (row["policy"], row["family"]) for row in nights}
    st.altair_chart(charts_gates.verdicts(nights), width="stretch")
    st.caption("Each field is one night's worst finding: " + ", ".join(f"{s} {n}" for n, (_, s) in VERDICTS.items()))
    line = linked("line", [EVERY, *sorted(lines)], label="History of", page=PAGE)
    history = [row for row in nights if line == EVERY or lines[line] == (row["policy"], row["family"])]
    if line != EVERY and any(row["loss"] is not None for row in history):
        st.altair_chart(charts_gates.loss_over_nights(history), width="content")
        st.caption("Points above 0 are worse than the baseline; lines: paired 95 % interval; dashes: the margin.")
    rows_shown(newest if line == EVERY else history[::-1])
    csv = safe_csv(history)
    st.download_button("Download the findings as CSV", csv, "findings.csv", "text/csv", icon=":material/download:")
else:
    st.info("No night was gated yet: no verdicts are in this store.", icon=":material/info:")
    st.code("kvmill nightly --config nightly.toml", language="bash")

st.subheader("Two runs · measured")
if len(runs) < 2:
    st.write("Two replays are needed to compare: this store has fewer.")
    st.code("kvmill replay --traces samples", language="bash")
    st.stop()
earlier, later = night.get("baseline_replay"), night.get("replay")
left, right = st.columns(2)
with left:
    one = earlier if earlier in runs else runs[1]
    before = linked_replay("before", store, runs, one, label="Before", page=PAGE)
with right:
    other = later if later in runs else runs[0]
    after = linked_replay("after", store, runs, other, label="After", page=PAGE)
if before == after:
    st.write("Choose two different runs.")
    st.stop()
with damage_shown(store):
    for side, run in (("Before", before), ("After", after)):
        st.caption(f"{side}: {plain(queries.origin(store.info(run)))}")
    apart = queries_gates.circumstances(store, before, after)
    states = queries_gates.changed_states(store, before, after)
    policies = queries_gates.common_policies(store, before, after)
if not policies:
    st.info("These runs have no policy in common.", icon=":material/info:")
    st.stop()
with st.expander(f"In what the runs were not alike ({len(apart)})"):
    rows_shown(apart)
if states:
    st.warning(f"{len(states)} cells ended in another state, or are in one of the runs only.")
    rows_shown(states)

metric = linked("figure", list(FIGURES), label="Figure", shown=FIGURES.__getitem__, page=PAGE)
with damage_shown(store):
    rows = queries_gates.differences(store, before, after, metric)
if not rows:
    st.write("Both runs measured this figure on no common trajectory.")
    st.stop()
title = f"{FIGURES[metric]}, after minus before"
chart = charts_compare.by_group(rows, title, among=policies, percent=metric in SHARES, difference=True)
st.altair_chart(chart, width="stretch")
st.caption("n: trajectories. Lines: 95 % interval of the paired difference, trajectories as the unit (Student's t).")
table = [
    {"policy": row["policy"], "family": row["grp"], "before": row["before"], "after": row["after"]}
    | {"difference": row["value"], "low": row["low"], "high": row["high"], "trajectories": row["n"]}
    for row in rows
]
rows_shown(table)
csv = safe_csv(table)
st.download_button("Download as CSV", csv, f"{before}-{after}.csv", "text/csv", icon=":material/download:")

st.subheader("Down to the turn")
left, right = st.columns(2)
with left:
    policy = linked("policy", policies, label="Policy", page=PAGE)
with damage_shown(store):
    changed = {
        row["trajectory_id"]: row for row in queries_gates.changed_trajectories(store, before, after, policy, metric)
    }
if not changed:
    st.write("This policy has no trajectory in common.")
    st.stop()
with right:
    trajectory = linked(
        "trajectory",
        list(changed),
        label="Trajectory, the most changed first",
        page=PAGE,
        shown=lambda name: f"{name} · {changed[name]['value']:+.4g}",
    )
with damage_shown(store):
    turns = queries_gates.turns(store, before, after, policy, trajectory)
first = next((row for row in turns if row["changed"]), None)
if first:
    names = ", ".join(OF_TURNS[name] for name in first["changed"])
    st.info(f"First differs at turn {first['turn']}: {names}.", icon=":material/call_split:")
else:
    st.success("No turn differs in any figure but times.", icon=":material/check:")
figure = metric if any(f"{metric} before" in row for row in turns) else "kv_tokens"
left, right = st.columns(2)
left.altair_chart(charts_gates.before_and_after(turns, figure, FIGURES.get(figure, OF_TURNS[figure])), width="stretch")
right.altair_chart(charts_gates.before_and_after(turns, "kv_tokens", OF_TURNS["kv_tokens"]), width="stretch")
shown = [name for name in EVERY_TURN if any(row.get(f"{name} {side}") is not None for row in turns for side in SIDES)]
table = [
    {"turn": row["turn"], "changed": ", ".join(OF_TURNS[name] for name in row["changed"])}
    | {f"{EVERY_TURN[name]}, {side}": row[f"{name} {side}"] for name in shown for side in SIDES}
    for row in turns
]
rows_shown(table)
legend("measured")
