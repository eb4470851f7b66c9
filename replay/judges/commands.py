"""The command about judges: what recorded runs got right."""

from __future__ import annotations

from typing import Annotated

import typer

from ...console import answer, guarded
from ...options import JsonOption, StoreOption


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(judge)


@guarded
def judge(
    traces: Annotated[str, typer.Option(help="Which runs, as for replay.")] = "last",
    scorer: Annotated[
        str | None,
        typer.Option(help="exact, contains, flag, choice, item_f1, actions, reward or llm (as the label says)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most N runs, families in turn.")] = None,
    judge_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint of --scorer llm (KVMILL_JUDGE_URL).")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="Its model (KVMILL_JUDGE_MODEL); the key comes from KVMILL_JUDGE_KEY.")
    ] = None,
    input_price: Annotated[float | None, typer.Option(min=0, help="USD per million input tokens.")] = None,
    output_price: Annotated[float | None, typer.Option(min=0, help="USD per million output tokens.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge what recorded runs answered and did, by their labels. Beside an agent that does nothing."""
    from ...traces.select import select
    from ...traces.store import Store
    from .endpoint import endpoint
    from .recorded import judge_runs, judged_text, needs_endpoint

    runs = select(Store.open(store), traces, limit)
    asked = needs_endpoint(runs, scorer)
    where = endpoint(judge_url, judge_model, None, input_price, output_price) if asked else None
    found = judge_runs(runs, scorer, where)
    answer(found, as_json, lambda: judged_text(found))
