"""Inspector: one trajectory, turn by turn: which tokens each policy kept, and where it went another way."""

import streamlit as st

from kvmill.dashboard import charts_inspect, queries, queries_inspect
from kvmill.dashboard.looks import short_names
from kvmill.dashboard.parts import damage_shown, legend, linked, linked_replay, open_store, rows_shown
from kvmill.dashboard.said import plain
from kvmill.dashboard.tokens_html import key_html, tokens_html, visible
from kvmill.replay.explain import one_line

MOST_POLICIES = 4
PAGE, SIDE = "inspector", "inspector policies"
ACTIONS = {
    "policy": "policy",
    "action_parsed": "holds an action",
    "action_name_match": "tools as recorded",
    "action_arguments_match": "arguments as recorded",
    "action_name_match_full": "tools as full's",
    "action_arguments_match_full": "arguments as full's",
    "action_text_similarity_full": "text like full's (0 to 1)",
    "generated_tokens": "tokens generated",
}
LOST = {"position": "position", "turn": "turn", "kind": "segment", "mass": "attention mass in full", "share": "kept"}
WORK = {
    "policy": "policy",
    "compactions": "compactions",
    "kv_tokens_peak": "KV inside the turn (tokens)",
    "kv_tokens": "KV after it (tokens)",
    "reprefill_tokens": "prefilled again (tokens)",
    "compaction_s": "compaction (s)",
    "prefill_s": "prefill (s)",
    "decode_s": "decode (s)",
}

store = open_store()
st.title("Inspector")
with damage_shown(store):
    runs = queries_inspect.replays(store)
    if not runs:
        st.info("No replay with kept tokens yet: nothing can be inspected.", icon=":material/info:")
        st.code("kvmill replay --traces samples --explain", language="bash")
        st.stop()
    left, right = st.columns(2)
    with left:
        run = linked_replay("run", store, runs, label="Run", page=PAGE)
    known = {row["trajectory_id"]: row for row in queries_inspect.trajectories(store, run)}
    if not known:
        st.info("No trajectory of this run was replayed to its end.", icon=":material/info:")
        st.stop()
    with right:
        trajectory = linked(
            "trajectory",
            list(known),
            label="Trajectory",
            page=PAGE,
            shown=lambda name: f"{name} · {known[name]['family']} · {known[name]['turns']} turns",
        )
    st.caption(f"{plain(queries.origin(store.info(run)))}, n = 1 trajectory")
    shares = queries_inspect.turn_shares(store, run, trajectory)
    if not shares:
        st.info(f"This run kept no tokens of {plain(trajectory)}.", icon=":material/info:")
        st.stop()

asked = [str(policy) for policy in store.info(run).config.get("policies", [])]
present = {row["policy"] for row in shares}
order = [*(policy for policy in asked if policy in present), *sorted(present.difference(asked))]
others = [policy for policy in order if policy != "full"] or order
st.subheader("What is left of each turn at the end · measured")
st.altair_chart(charts_inspect.kept_by_turn(shares, order), width="stretch")
st.caption("Mean share of layer-heads that still hold a token of the segment when the trajectory ends.")

st.subheader("Tokens of a turn")
left, right = st.columns([1, 2])
turns = sorted({str(row["turn"]) for row in shares}, key=int)
with left:
    turn = int(linked("turn", turns, label="Turn (from 0)", page=PAGE))
# Not bound to the address: it would hold the short names.
if not set(st.session_state.get(SIDE, [None])) <= set(order):
    linked_to = [policy for policy in dict.fromkeys(st.query_params.get_all("policies")) if policy in order]
    st.session_state[SIDE] = linked_to[:MOST_POLICIES] or others[:2]
names = short_names(order)
chosen = right.multiselect(
    f"Policies side by side (at most {MOST_POLICIES})",
    order,
    format_func=names.__getitem__,
    help="  \n".join(f"{plain(names[policy])}: `{policy}`" for policy in order),
    max_selections=MOST_POLICIES,
    wrap=True,
    key=SIDE,
    persist_state="session",
)
st.query_params["policies"] = chosen
if not chosen:
    st.write("Choose a policy.")
    st.stop()
st.html(key_html())
page_at = st.session_state.get("page of tokens", 1)
with damage_shown(store):
    found = queries_inspect.tokens(store, run, trajectory, turn, chosen, page_at - 1)
    if page_at > found["pages"]:
        found = queries_inspect.tokens(store, run, trajectory, turn, chosen, 0)
    departed = {entry["policy"]: entry for entry in queries_inspect.departures(store, run, trajectory, chosen)}
    actions = [row for row in queries_inspect.actions(store, run, trajectory) if row["policy"] in chosen]
if found["pages"] > 1:
    st.pagination(found["pages"], key="page of tokens")
for column, policy in zip(st.columns(len(chosen)), chosen, strict=True):
    column.markdown(f"**`{policy}`**")
    entry = departed.get(policy)
    if entry and entry["diverged_turn"] == turn:
        column.info(f"Here it first departs from full: {entry['by']}.", icon=":material/call_split:")
    elif entry and entry["diverged_turn"] is not None:
        column.caption(f"First departs from full at turn {entry['diverged_turn']}: {entry['by']}.")
    elif entry:
        column.caption("Departs from full nowhere.")
    column.html(tokens_html(found["tokens"][policy]))

if actions:
    st.subheader("The action generated at this turn · measured")
    rows = [{title: row[key] for key, title in ACTIONS.items()} for row in actions if row["turn"] == turn]
    rows_shown(rows)
    st.caption("Agreement with the record is not accuracy: another action may be as good.")
st.subheader("Work of this turn · measured")
work = [
    {title: (row | {"policy": policy})[key] for key, title in WORK.items()}
    for policy, entry in departed.items()
    for row in entry["turns"]
    if row["turn"] == turn
]
measured = [title for title in WORK.values() if any(row[title] is not None for row in work)]
rows_shown(work, column_order=measured)
st.subheader("What was dropped before it departed")
for policy, entry in departed.items():
    st.markdown(f"**`{policy}`**")
    if entry["lost"] is None:
        st.write("What the dropped tokens carried was not measured: replay with `--explain`.")
    elif not entry["lost"]:
        st.write("No token of its past was dropped by then.")
    else:
        rows = [
            {title: token[key] for key, title in LOST.items()}
            | {"token": one_line(visible(token["text"])), "around": one_line(visible(token["around"]))}
            for token in entry["lost"]
        ]
        rows_shown(rows)
legend("measured")
