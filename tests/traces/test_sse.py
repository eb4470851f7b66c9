"""Streams of events: the data objects of each answer, however the stream was written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvmill.traces import sse
from kvmill.traces.inputs import records
from kvmill.traces.reading import Bad, Record

ANTHROPIC = (
    'event: message_start\ndata: {"type": "message_start"}\n\n'
    'event: ping\ndata: {"type":\ndata:  "ping"}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
CHAT = ': a comment\n\ndata: {"choices": [1]}\n\ndata:{"choices": [2]}\n\ndata: [DONE]\n\n'


def read(tmp_path: Path, text: str) -> list[Record | Bad]:
    (tmp_path / "log").write_bytes(text.encode())
    return list(records(tmp_path / "log"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_answer_is_one_record(tmp_path: Path, end: str) -> None:
    found = read(tmp_path, (ANTHROPIC + CHAT + CHAT).replace("\n", end))
    assert [(r.place, r.value) for r in found if isinstance(r, Record)] == [
        (2, {"sse": [{"type": "message_start"}, {"type": "ping"}, {"type": "message_stop"}]}),
        (13, {"sse": [{"choices": [1]}, {"choices": [2]}]}),
        (21, {"sse": [{"choices": [1]}, {"choices": [2]}]}),
    ]


def test_a_stream_that_breaks_off_gives_what_came(tmp_path: Path) -> None:
    [found] = read(tmp_path, CHAT[: CHAT.index("data: [DONE]")])
    assert isinstance(found, Record)
    assert found.value == {"sse": [{"choices": [1]}, {"choices": [2]}]}


def test_data_that_are_no_json_are_named_and_the_others_kept(tmp_path: Path) -> None:
    found = read(tmp_path, CHAT.replace('{"choices": [1]}', "oops"))
    assert isinstance(found[0], Bad)
    assert found[0].place == 3
    assert isinstance(found[1], Record)
    assert found[1].value == {"sse": [{"choices": [2]}]}


def test_text_inside_a_record_is_read_alike() -> None:
    assert sse.looks_like(ANTHROPIC)
    assert sse.objects(ANTHROPIC)[1] == {"type": "ping"}
    assert sse.objects(CHAT) == [{"choices": [1]}, {"choices": [2]}]
    with pytest.raises(ValueError, match="no valid JSON"):
        sse.objects("data: oops\n\n")
    for other in ('{"data": 1}\n', "data, event\n1,2\n", "", "event: nothing follows\n"):
        assert not sse.looks_like(other)


def test_real_cassettes_hold_streams(shared_data: Path) -> None:
    path = shared_data / "traces/anthropic-messages/reasoning-tool-use-streaming.json"
    body = json.loads(path.read_text())["body"]
    assert sse.looks_like(body)
    objects = sse.objects(body)
    assert objects[0]["type"] == "message_start"
    assert sse.ends(objects[-1])
