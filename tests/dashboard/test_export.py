"""The report to take along: it holds the answer, escapes what comes from elsewhere, and asks no other machine."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import fabricate

from kvmill.dashboard import export

FOUND = {**fabricate.planned(), "command": "kvmill plan --workload=long-agents", "made": "2026-01-02 03:04"}


class Tags(HTMLParser):
    """What a page opens and closes, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag == self.open[-1]:
            self.open.pop()


def test_the_file_asks_no_other_machine_for_anything():
    text = export.as_html(FOUND)
    found = Tags(text)
    assert not {"src", "href", "srcset", "action", "onclick"} & found.attributes.keys()
    assert "<script" not in text
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text, "and a browser that reads it would not let it"


def test_the_file_is_whole_and_leads_with_the_answer():
    text = export.as_html(FOUND)
    assert Tags(text).open == []
    assert text.index(FOUND["answer"]) < text.index("<table")
    for words in ("14 (95 % interval 13 to 15)", "KV blocks", "400 agents (assumed)", FOUND["command"]):
        assert words in text


def test_bars_are_as_long_as_the_fleets_and_their_intervals_are_drawn():
    drawn = export.bars(FOUND["plans"])
    widths = [float(width) for width in re.findall(r'width="([0-9.]+)" height="20"', drawn)]
    gpus = [row["gpus"] for row in FOUND["plans"]]
    assert [round(width / widths[0], 2) for width in widths] == [round(count / gpus[0], 2) for count in gpus]
    assert drawn.count("<line") == len(gpus)


def test_no_fleet_has_no_bar():
    assert export.bars([{"policy": "full", "gpus": None}]) == ""


def test_names_from_elsewhere_are_text():
    text = export.as_html(FOUND | {"workload": "<script>alert(1)</script>", "command": "<img src=x>"})
    assert "<script" not in text
    assert "<img" not in text


def test_the_object_is_json_without_numbers_that_are_none():
    told = json.loads(export.as_json(FOUND | {"level": float("inf"), "other": float("nan")}))
    assert told["plans"][0]["policy"] == "full"
    assert told["level"] is None
    assert told["other"] is None


def test_a_command_in_backticks_is_code_and_no_backtick_is_shown():
    text = export.as_html(FOUND | {"answer": "With `te(keep=0.2)` it needs <9>."})
    assert "With <code>te(keep=0.2)</code> it needs &lt;9&gt;." in text
    assert "`" not in text


def test_no_folder_of_this_machine_is_in_the_report():
    line = "kvmill plan --workload=/home/someone/own/load.toml --gpu-file='/data/my own/card.toml' --slo=ttft_p95=2"
    told = {"lengths": ["read from ~/runs/a.jsonl (assumed)"], "source": "https://example.org/a/b, 35 / 35, USD/hour"}
    text = export.as_html(FOUND | {"command": line, "workload": "/home/someone/own/load.toml", "assumptions": told})
    assert not re.search(r"/home|/data|someone|~/|my own/", text)
    for kept in (
        "--workload=load.toml",
        "card.toml",
        "read from a.jsonl",
        "https://example.org/a/b, 35 / 35, USD/hour",
    ):
        assert kept in text
    assert json.loads(export.as_json(FOUND | {"command": line}))["command"] == line, "who plans again needs the place"


def test_tables_do_not_widen_the_page_and_quality_has_a_column_per_policy():
    text = export.as_html(FOUND)
    assert text.count("<table") == text.count('<div class="wide"><table')
    assert "overflow-x: auto" in text
    quality = text[text.index("Quality (measured)") :]
    head = quality[: quality.index("</thead>")]
    assert head.count("<th>") == 1 + len(FOUND["plans"])


def test_a_loss_is_in_points_with_its_interval_and_few_trajectories_are_flagged():
    row = FOUND["plans"][1] | {"answer_accuracy": 0.5, "quality_n": 4, "quality_model": "smollm2-135m"}
    row |= {"difference": -0.25, "difference_low": -0.4, "difference_high": -0.1}
    text = export.as_html(FOUND | {"plans": [FOUND["plans"][0], row]})
    assert "-25.0 (-40.0 to -10.0)" in text
    assert "4 (few: see the interval)" in text
    assert "50.0%" in text
