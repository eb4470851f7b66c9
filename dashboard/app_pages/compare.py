"""Compare policies: what is lost against how much memory is left, where it is lost, how long a turn takes."""

import streamlit as st

from kvmill.dashboard import charts_compare, queries, queries_compare
from kvmill.dashboard.access import safe_csv
from kvmill.dashboard.charts_compare import against_kv
from kvmill.dashboard.parts import damage_shown, legend, linked, open_store
from kvmill.dashboard.said import plain
from kvmill.replay.scored import name_of

COLUMNS = {
    "policy": "policy",
    "n": "trajectories",
    "n_probes": "probes",
    "answer_accuracy": "answer accuracy",
    "answer_accuracy_low": "accuracy, low",
    "answer_accuracy_high": "accuracy, high",
    "answer_ll": "answer log-likelihood (nats)",
    "difference": "accuracy minus full",
    "difference_low": "difference, low",
    "difference_high": "difference, high",
    "answer_ll_difference": "log-likelihood minus full (nats)",
    "delta_nll": "ΔNLL (nats)",
    "kl": "KL (nats)",
    "top1_agreement": "top-1 agreement",
    "kv_tokens_peak": "peak KV (tokens)",
    "kv_saved": "peak KV saved (share)",
    "ttft_s": "time to first token (s)",
    "prefill_s_per_turn": "prefill (s/turn)",
    "compaction_s_per_turn": "compaction (s/turn)",
    "decode_s_per_token": "decode (s/token)",
}
BEHAVIOUR = {
    "policy": "policy",
    "turns_mean": "turns",
    "extra_turns": "extra turns (share of full's)",
    "extra_turns_low": "extra turns, low",
    "extra_turns_high": "extra turns, high",
    "extra_turns_n": "pairs with full",
    "searches": "searches per run",
    "repeated_searches": "repeated searches (share)",
    "near_repeats": "near repeats (share)",
    "repeated_calls": "repeated calls (share)",
    "tool_errors": "tool errors (share of calls)",
    "tokens_generated": "tokens generated per run",
    "answered": "runs that answered (share)",
    "closed_accuracy": "accuracy of answers",
}
VIEWS = ("Memory over turns", "Seconds per turn", "Age of the fact", "Families", "Behaviour")
METRICS = {
    "answer_accuracy": "accuracy",
    "answer_ll": "log p(right answer) (nats)",
    "delta_nll": "ΔNLL (nats per token)",
    "top1_agreement": "top-1 agreement",
}
SHARES = ("answer_accuracy", "top1_agreement")

store = open_store()
st.title("Compare policies")
with damage_shown(store):
    runs = queries_compare.replays(store)
    if not runs:
        st.info("No replay yet: nothing was measured.", icon=":material/info:")
        st.code("kvmill replay --traces samples", language="bash")
        st.stop()
    run = linked("run", runs)
    found = queries_compare.measured(store, run)
    policies = found["policies"]
    failed = queries_compare.failures(store, run)
    st.caption(queries.origin(store.info(run)) + "; intervals: 95 %, trajectories resampled")
    advice = queries_compare.recommended(store, run)

order = [row["policy"] for row in policies]
hidden = [entry["family"] for entry in found["accuracy_not_shown"]]
what = name_of(found["label_scorers"])
answered = any(row["answer_accuracy"] is not None for row in policies)

if failed:
    st.warning(f"{len(failed)} cells failed; their trajectories are missing from the figures.")
    st.dataframe(failed, hide_index=True, width="stretch")
few = min((row["n"] for row in policies if row["n"]), default=0)
if few < 10:
    st.warning(f"Only {few} trajectories: read the intervals, not the points.")
for entry in found["accuracy_not_shown"]:
    st.warning(plain(entry["reason"]))
if advice and advice["policy"]:
    st.success(
        f"`{advice['policy']}` is recommended (guarantee: {advice['guarantee']}): {plain(advice['reason'])}.",
        icon=":material/check:",
    )
elif advice:
    st.info(f"No policy is recommended: {plain(advice['reason'])}.", icon=":material/info:")

ring = {"recommended": advice["policy"], "guarantee": advice["guarantee"]} if advice else {}
left, right = st.columns(2)
if answered:
    paired = [row | ({"answer_ll_difference": 0.0} if row["policy"] == "full" else {}) for row in policies]
    likelihood = "log p(right answer), minus full (nats, paired)"
    left.subheader(f"{what.capitalize()} · measured")
    left.altair_chart(against_kv(policies, "answer_accuracy", what, percent=True, **ring), width="stretch")
    right.subheader("Log-likelihood · measured")
    right.altair_chart(against_kv(paired, "answer_ll_difference", likelihood, **ring), width="stretch")
elif any(row["delta_nll"] is not None for row in policies):
    left.subheader("Loss on the recorded text · measured")
    left.altair_chart(against_kv(policies, "delta_nll", "ΔNLL (nats per token)", less=True), width="stretch")
    right.subheader("Agreement with the full cache · measured")
    right.altair_chart(against_kv(policies, "top1_agreement", "top-1 agreement", percent=True), width="stretch")
else:
    left.write("No quality was measured in this run.")
st.caption("Steps: policies that no other one beats, by point estimate. Beside the points: the keep ratio.")

view = st.segmented_control("More", VIEWS, default=VIEWS[0], required=True, key="view", bind="query-params")
with damage_shown(store):
    if view == "Memory over turns":
        turns = queries_compare.kv_over_turns(store, run)
        st.subheader("KV over turns · measured")
        if turns:
            st.altair_chart(charts_compare.kv_over_turns(turns), width="stretch")
            st.caption("Lines: mean over trajectories that still run. Bands: 10th to 90th percentile of them.")
        else:
            st.write("This run has no turn rows.")
    elif view == "Seconds per turn":
        parts = queries_compare.latency_parts(store, run)
        st.subheader("Seconds per turn · measured")
        if parts:
            left, right = st.columns(2)
            left.altair_chart(charts_compare.seconds_per_turn(parts), width="stretch")
            right.altair_chart(
                charts_compare.ttft_over_turns(queries_compare.ttft_over_turns(store, run)), width="stretch"
            )
            st.caption(
                f"By forced decode, alone on the replay device, {max(row['n'] for row in parts)} trajectories; the "
                "first turn is left out of the means. Compaction and prefill are what the first token waits for."
            )
        else:
            st.write("Latency was not measured in this run: replay with `--measure both`.")
    elif view in ("Age of the fact", "Families"):
        st.subheader("Quality by age of the fact · measured" if view == VIEWS[2] else "Quality by family · measured")
        known = queries_compare.OF_PROBES if view == VIEWS[2] else queries_compare.METRICS
        names = [name for name in METRICS if name in known and any(row[name] is not None for row in policies)]
        if names:
            metric = linked("figure", names, shown=lambda name: METRICS[name])
            grouped = queries_compare.by_age if view == VIEWS[2] else queries_compare.by_family
            # Of a family in which full itself answers little, accuracy says nothing.
            rows = grouped(store, run, metric, hidden if metric == "answer_accuracy" else ())
            title = what if metric == "answer_accuracy" else METRICS[metric]
            across = "turns since the fact" if view == VIEWS[2] else "family"
            chart = charts_compare.by_group(rows, title, across=across, order=order, percent=metric in SHARES)
            st.altair_chart(chart, width="content")
            st.caption("Lines: 95 % interval, trajectories as the unit (standard error of a ratio, Student's t).")
        else:
            st.write("This run asked no probes." if view == VIEWS[2] else "No quality was measured in this run.")
    elif view == "Behaviour":
        st.subheader("Behaviour in a closed loop · measured")
        acted = queries_compare.behaviour(store, run)
        if acted is None or not acted["policies"]:
            st.write("No closed-loop run of this model: extra turns and repeated searches are not known. Measure them:")
            st.code(f"kvmill replay --mode closed --model {found['model'] or 'MODEL'}", language="bash")
        else:
            st.caption(queries.origin(store.info(acted["run"])))
            if acted["model_too_weak"]:
                st.warning(plain(acted["model_too_weak"]))
            left, right = st.columns(2)
            growth = "turns beyond full's (share)"
            left.altair_chart(charts_compare.shares(acted["policies"], {"extra_turns": "extra turns"}, growth))
            repeats = {"repeated_searches": "repeated searches", "near_repeats": "near repeats"}
            right.altair_chart(charts_compare.shares(acted["policies"], repeats, "share of searches"))
            table = [{title: row.get(key) for key, title in BEHAVIOUR.items()} for row in acted["policies"]]
            st.dataframe(table, hide_index=True, width="stretch")

st.subheader("Figures")
figures = [{title: row.get(key) for key, title in COLUMNS.items()} for row in policies]
st.dataframe(figures, hide_index=True, width="stretch")
st.download_button("Download as CSV", safe_csv(figures), f"{run}.csv", "text/csv", icon=":material/download:")
legend("measured")
