"""Compare policies: what is lost against how much memory is left, where it is lost, how long a turn takes."""

import streamlit as st

from kvmill.dashboard import charts_compare, queries, queries_compare
from kvmill.dashboard.access import safe_csv
from kvmill.dashboard.charts_compare import against_kv
from kvmill.dashboard.parts import damage_shown, legend, linked, linked_replay, open_store, rows_shown
from kvmill.dashboard.said import plain
from kvmill.replay.looks import KEY
from kvmill.replay.report import STOPPED
from kvmill.replay.scored import name_of
from kvmill.replay.statistics import FEW

COLUMNS = {
    "policy": "policy",
    "n": "trajectories",
    "n_probes": "probes",
    "answer_accuracy": "answer accuracy",
    "answer_accuracy_low": "accuracy, low",
    "answer_accuracy_high": "accuracy, high",
    "answer_ll": "answer log-likelihood (nats)",
    "difference": "accuracy minus full (share)",
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
    "top1_agreement": "top-1 agreement with full",
}
SHARES = ("answer_accuracy", "top1_agreement")
PAGE = "compare"
SHARE_COLUMNS = [title for key, title in COLUMNS.items() if key.startswith("answer_accuracy")]
SHARE_COLUMNS += [COLUMNS["top1_agreement"], COLUMNS["kv_saved"]]
SHARE_COLUMNS += [title for key, title in BEHAVIOUR.items() if key.startswith("extra_turns") and key[-2:] != "_n"]
SHARE_COLUMNS += [title for title in BEHAVIOUR.values() if "(share" in title or title.startswith("accuracy")]
FORMS = {title: st.column_config.NumberColumn(format="percent") for title in SHARE_COLUMNS}
FORMS |= {"policy": st.column_config.TextColumn(pinned=True, width=260)}
FORMS |= {COLUMNS["kv_tokens_peak"]: st.column_config.NumberColumn(format="%,.0f")}

store = open_store()
st.title("Compare policies")
with damage_shown(store):
    runs = queries_compare.replays(store)
    if not runs:
        st.info("No replay yet: nothing was measured.", icon=":material/info:")
        st.code("kvmill replay --traces samples", language="bash")
        st.stop()
    run = linked_replay("run", store, runs, label="Run", page=PAGE)
    found = queries_compare.measured(store, run)
    policies = found["policies"]
    failed = queries_compare.failures(store, run)
    advice = queries_compare.recommended(store, run)
    origin = queries.origin(store.info(run))

order = [row["policy"] for row in policies]
hidden = [entry["family"] for entry in found["accuracy_not_shown"]]
what = name_of(found["label_scorers"])
answered = any(row["answer_accuracy"] is not None for row in policies)
few = min((row["n"] for row in policies if row["n"]), default=0)
probes = max((row["n_probes"] or 0 for row in policies), default=0)
size = f"{few} trajectories" + (f", {probes} probes" if probes else "")
st.caption(f"{plain(origin)}, n = {size}; intervals: 95 %, trajectories resampled")

if failed:
    st.warning(f"{len(failed)} cells failed; their trajectories are missing from the figures.")
    rows_shown(failed)
if found[KEY]:
    st.info(f"{plain(STOPPED)[0].upper()}{plain(STOPPED)[1:]}.", icon=":material/info:")
if few < FEW:
    st.info(f"Only {few} trajectories: read the intervals, not the points.", icon=":material/info:")
for entry in found["accuracy_not_shown"]:
    st.info(plain(entry["reason"]), icon=":material/visibility_off:")
if advice and advice["policy"]:
    st.success(
        f"`{advice['policy']}` is recommended (guarantee: {advice['guarantee']}): {plain(advice['reason'])}.",
        icon=":material/check:",
    )
elif advice:
    first, *others = advice["reason"].split("; ")
    st.info(f"No policy is recommended: {plain(first)}.", icon=":material/info:")
    if others:
        with st.expander(f"and {len(others)} more reasons"):
            st.markdown("\n".join(f"- {plain(reason)}" for reason in others))

chosen = advice["policy"] if advice else None
if answered:
    paired = [row | ({"answer_ll_difference": 0.0} if row["policy"] == "full" else {}) for row in policies]
    likelihood = "log p(right) minus full (nats, paired)"
    st.subheader(f"{what.capitalize()} · measured")
    accuracy = against_kv(policies, "answer_accuracy", what, percent=True, recommended=chosen)
    st.altair_chart(accuracy, width="stretch")
    st.subheader("Log-likelihood of the right answer · measured")
    st.altair_chart(against_kv(paired, "answer_ll_difference", likelihood, recommended=chosen), width="stretch")
elif any(row["delta_nll"] is not None for row in policies):
    st.subheader("Loss on the recorded text · measured")
    st.altair_chart(against_kv(policies, "delta_nll", "ΔNLL (nats per token)", less=True), width="stretch")
    st.subheader("Agreement with the full cache · measured")
    st.altair_chart(against_kv(policies, "top1_agreement", "top-1 agreement", percent=True), width="stretch")
else:
    st.write("No quality was measured in this run.")
ring = " Ring: the recommended one." if chosen else ""
st.caption(
    f"Steps: policies that no other one beats, by point estimate. Dashes: the full cache.{ring} Peak KV: mean over "
    f"trajectories of the most tokens held inside turns; n = {size}."
)
if answered and store.info(run).state == "complete":
    label, icon = "Size a fleet with the quality of this run", ":material/dns:"
    st.page_link("app_pages/capacity.py", label=label, icon=icon, query_params={"quality": run})

view = st.segmented_control("More", VIEWS, default=VIEWS[0], required=True, key="view", bind="query-params")
with damage_shown(store):
    if view == "Memory over turns":
        turns = queries_compare.kv_over_turns(store, run)
        st.subheader("KV over turns · measured")
        if turns:
            st.altair_chart(charts_compare.kv_over_turns(turns, order), width="stretch")
            st.caption(
                f"Lines: mean over trajectories that still run (at most {max(row['trajectories'] for row in turns)}). "
                "Bands: 10th to 90th percentile of them. A click on a policy's name shows it alone."
            )
        else:
            st.write("This run has no turn rows.")
    elif view == "Seconds per turn":
        parts = queries_compare.latency_parts(store, run)
        st.subheader("Seconds per turn · measured")
        if parts:
            waits = queries_compare.ttft_over_turns(store, run)
            st.altair_chart(charts_compare.seconds_per_turn(parts, order), width="stretch")
            st.caption(
                f"By forced decode, alone on the replay device, {max(row['n'] for row in parts)} trajectories; the "
                "first turn is left out of the means. Compaction and prefill are what the first token waits for. "
                "Lines: 95 % interval of the whole."
            )
            st.altair_chart(charts_compare.ttft_over_turns(waits, order), width="stretch")
            st.caption("Lines: median over trajectories. Bands: 10th to 90th percentile of them.")
        else:
            st.write("Latency was not measured in this run: replay with `--measure both`.")
    elif view in ("Age of the fact", "Families"):
        st.subheader("Quality by age of the fact · measured" if view == VIEWS[2] else "Quality by family · measured")
        known = queries_compare.OF_PROBES if view == VIEWS[2] else queries_compare.METRICS
        names = [name for name in METRICS if name in known and any(row[name] is not None for row in policies)]
        if names:
            metric = linked("figure", names, shown=METRICS.__getitem__, page=PAGE)
            grouped = queries_compare.by_age if view == VIEWS[2] else queries_compare.by_family
            # Of a family in which full itself answers little, accuracy says nothing.
            rows = grouped(store, run, metric, hidden if metric == "answer_accuracy" else ())
            title = what if metric == "answer_accuracy" else METRICS[metric]
            chart = charts_compare.by_group(rows, title, among=order, percent=metric in SHARES)
            st.altair_chart(chart, width="stretch")
            st.caption(
                "n: trajectories. Lines: 95 % interval, trajectories as the unit (standard error of a ratio, "
                "Student's t). A point without a line: one trajectory, or all alike, which tells nothing of others."
            )
        else:
            st.write("This run asked no probes." if view == VIEWS[2] else "No quality was measured in this run.")
    elif view == "Behaviour":
        st.subheader("Behaviour in a closed loop · measured")
        loops = queries_compare.acted(store, run)
        acted = {}
        if loops:
            loop = linked_replay("closed", store, loops, label="Closed-loop run", page=PAGE)
            acted = queries_compare.behaviour(store, loop)
            st.caption(plain(queries.origin(store.info(loop))))
        if not acted.get("policies"):
            st.write("No closed-loop run of this model: extra turns and repeated searches are not known. Measure them:")
            st.code(f"kvmill replay --mode closed --model {found['model'] or 'MODEL'}", language="bash")
        else:
            if acted["model_too_weak"]:
                st.warning(plain(acted["model_too_weak"]))
            left, right = st.columns(2)
            among = [row["policy"] for row in acted["policies"]]
            growth = "turns beyond full's (share)"
            extra = charts_compare.shares(acted["policies"], {"extra_turns": "extra turns"}, growth, among)
            left.altair_chart(extra, width="stretch")
            repeats = {"repeated_searches": "repeated searches", "near_repeats": "near repeats"}
            again = charts_compare.shares(acted["policies"], repeats, "share of searches", among)
            right.altair_chart(again, width="stretch")
            table = [{title: row.get(key) for key, title in BEHAVIOUR.items()} for row in acted["policies"]]
            rows_shown(table, column_config=FORMS)

st.subheader("Figures · measured")
figures = [{title: row.get(key) for key, title in COLUMNS.items()} for row in policies]
rows_shown(figures, column_config=FORMS)
st.download_button("Download as CSV", safe_csv(figures), f"{run}.csv", "text/csv", icon=":material/download:")
legend("measured")
