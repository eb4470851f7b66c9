"""Compare policies: what is lost against how much memory is left, and memory over the turns."""

import streamlit as st

from kvmill.dashboard import charts, queries
from kvmill.dashboard.parts import damage_shown, legend, open_store
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
    "answer_ll_difference": "log-likelihood minus full (nats)",
    "delta_nll": "ΔNLL (nats)",
    "kl": "KL (nats)",
    "top1_agreement": "top-1 agreement",
    "kv_tokens_peak": "peak KV (tokens)",
    "prefill_s_per_turn": "prefill (s/turn)",
    "compaction_s_per_turn": "compaction (s/turn)",
    "decode_s_per_token": "decode (s/token)",
}

store = open_store()
st.title("Compare policies")
with damage_shown(store):
    runs = queries.run_ids(store, "replay", "cells")
    if not runs:
        st.info("No replay yet: nothing was measured.", icon=":material/info:")
        st.code("kvmill replay --traces samples", language="bash")
        st.stop()
    run = st.selectbox("Run", runs)
    found = queries.measured(store, run)
    policies = found["policies"]
    turns = queries.kv_over_turns(store, run)
    failed = queries.failures(store, run)
    st.caption(queries.origin(store.info(run)) + "; intervals: 95 %, trajectories resampled")

if failed:
    st.warning(f"{len(failed)} cells failed; their trajectories are missing from the figures.")
    st.dataframe(failed, hide_index=True, width="stretch")
few = min((row["n"] for row in policies if row["n"]), default=0)
if few < 10:
    st.warning(f"Only {few} trajectories: read the intervals, not the points.")

left, right = st.columns(2)
if any(row.get("answer_accuracy") is not None for row in policies):
    what = name_of(found["label_scorers"])
    left.subheader(f"{what.capitalize()} · measured")
    left.altair_chart(charts.against_kv(policies, "answer_accuracy", what, percent=True), width="stretch")
    right.subheader("Log-likelihood · measured")
    paired = [row | ({"answer_ll_difference": 0.0} if row["policy"] == "full" else {}) for row in policies]
    right.altair_chart(
        charts.against_kv(paired, "answer_ll_difference", "log p(right answer), minus full (nats, paired)"),
        width="stretch",
    )
else:
    left.subheader("Loss on the recorded text · measured")
    left.altair_chart(charts.against_kv(policies, "delta_nll", "ΔNLL (nats per token)"), width="stretch")
    right.subheader("Agreement with the full cache · measured")
    right.altair_chart(charts.against_kv(policies, "top1_agreement", "top-1 agreement", percent=True), width="stretch")
st.subheader("KV over turns · measured")
if turns:
    st.altair_chart(charts.kv_over_turns(turns), width="stretch")
else:
    st.write("This run has no turn rows.")
st.subheader("Figures")
st.dataframe(
    [{title: row.get(key) for key, title in COLUMNS.items()} for row in policies], hide_index=True, width="stretch"
)
legend("measured")
