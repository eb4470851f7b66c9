"""A model as judge, against a server of the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.replay.judges.endpoint import Endpoint, Spent, ask, endpoint
from kvmill.replay.judges.model import messages, model_judge
from kvmill.replay.judges.verdict import Context
from kvmill.traces.trajectory import Label

LABEL = Label("llm", "Oslo")
CONTEXT = Context(question="Where?")
YES = '{"correct": true, "reason": "same city"}'


class Server:
    """Replies in order: a text is a completion, a number that status, (number, seconds) with Retry-After."""

    def __init__(self, url: str) -> None:
        self.url, self.replies, self.asked = url, [], []

    replies: list[Any]
    asked: list[tuple[str | None, dict[str, Any]]]


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.asked.append((self.headers.get("Authorization"), body))
            reply = told.replies.pop(0)
            status, wait = reply if isinstance(reply, tuple) else (reply if isinstance(reply, int) else 200, None)
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            out = {"choices": [{"message": {"content": reply}}], "usage": usage} if status == 200 else {"error": "no"}
            self.send_response(status)
            if wait is not None:
                self.send_header("Retry-After", str(wait))
            self.end_headers()
            self.wfile.write(json.dumps(out).encode())

        def log_message(self, *_: Any) -> None:
            return

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told = Server(f"http://127.0.0.1:{found.server_port}/v1")
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield told
    found.shutdown()
    found.server_close()


def where(server: Server, **more: Any) -> Endpoint:
    return replace(Endpoint(server.url, "some-model", "sesame", wait_s=0.5), **more)


def test_the_verdict_is_the_models_and_its_words_are_kept(server: Server) -> None:
    server.replies = [YES, 'I think so.\n```json\n{"correct": false, "reason": "another"}\n```']
    judge = model_judge(where(server))
    right, wrong = judge(LABEL, "Oslo, Norway", CONTEXT), judge(LABEL, "Paris", CONTEXT)
    assert (right.correct, right.score, right.reason) == (True, 1.0, "the judge: same city")
    assert (wrong.correct, wrong.score) == (False, 0.0)
    key, body = server.asked[0]
    assert key == "Bearer sesame"
    assert (body["model"], body["temperature"]) == ("some-model", 0)
    assert json.loads(body["messages"][1]["content"]) == {
        "question": "Where?",
        "accepted": ["Oslo"],
        "answer": "Oslo, Norway",
    }


def test_a_reply_that_says_neither_decides_nothing_and_no_answer_is_not_sent(server: Server) -> None:
    server.replies = ["Hmm, correct: maybe {}"]
    judge = model_judge(where(server))
    assert judge(LABEL, "Oslo", CONTEXT).correct is None
    assert judge(LABEL, " ", CONTEXT).correct is False
    assert judge(Label("llm"), "Oslo", CONTEXT).correct is None
    assert len(server.asked) == 1


def test_it_is_tried_again_with_growing_waits_where_that_may_help(server: Server) -> None:
    waits: list[float] = []
    server.replies = [500, (429, 7), 503, "fine"]
    assert ask(where(server), messages(["a"], "b", "c"), Spent(), waits.append) == "fine"
    assert waits == [0.5, 7.0, 14.0]


def test_it_gives_up_after_its_attempts_and_says_what_failed(server: Server) -> None:
    server.replies = [503] * 3
    with pytest.raises(UserError, match="failed 3 times, at last with: 503"):
        ask(where(server, attempts=3), messages(["a"], "b", "c"), Spent(), lambda _: None)


def test_a_refusal_is_not_tried_again_and_the_key_is_shown_nowhere(server: Server) -> None:
    server.replies = [401]
    with pytest.raises(UserError, match="refuses: 401") as error:
        ask(where(server), messages(["a"], "b", "c"), Spent(), lambda _: pytest.fail("waited"))
    assert "sesame" not in str(error.value) + repr(where(server))


def test_a_server_that_is_not_there_is_an_error_of_one_line(server: Server) -> None:
    gone = Endpoint("http://127.0.0.1:9", "m", attempts=2)
    with pytest.raises(UserError, match="failed 2 times"):
        ask(gone, messages(["a"], "b", "c"), Spent(), lambda _: None)


def test_the_same_question_is_asked_once_and_a_damaged_file_again(server: Server, tmp_path: Path) -> None:
    server.replies = [YES, YES, YES]
    spent = Spent()
    judge = model_judge(where(server, cache=tmp_path), spent)
    first, second = judge(LABEL, "Oslo", CONTEXT), judge(LABEL, "Oslo", CONTEXT)
    assert first == second
    assert (spent.calls, spent.cached) == (1, 1)
    (kept,) = tmp_path.iterdir()
    assert "sesame" not in kept.read_text()
    kept.write_text("{")
    judge(LABEL, "Oslo", CONTEXT)
    judge(LABEL, "Oslo!", CONTEXT)
    assert (spent.calls, spent.cached) == (3, 1)
    assert not list(tmp_path.glob("*.tmp"))


def test_calls_tokens_and_cost_are_counted(server: Server) -> None:
    server.replies = [YES, YES]
    spent = Spent()
    priced = where(server, input_price=2.0, output_price=8.0)
    judge = model_judge(priced, spent)
    judge(LABEL, "Oslo", CONTEXT)
    judge(LABEL, "Rome", CONTEXT)
    assert (spent.calls, spent.input_tokens, spent.output_tokens) == (2, 200, 20)
    assert spent.cost(priced) == pytest.approx((200 * 2 + 20 * 8) / 1e6)
    assert spent.cost(where(server)) is None


def test_what_is_no_completion_is_an_error(server: Server) -> None:
    server.replies = [None]
    with pytest.raises(UserError, match="gave no chat completion"):
        ask(where(server), messages(["a"], "b", "c"), Spent())


def test_it_is_off_until_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"KVMILL_JUDGE_{name}", raising=False)
    with pytest.raises(UserError, match="KVMILL_JUDGE_URL"):
        endpoint()
    with pytest.raises(UserError, match="must begin with http"):
        endpoint("file:///etc/passwd", "m")
    monkeypatch.setenv("KVMILL_JUDGE_URL", "http://here/v1/")
    monkeypatch.setenv("KVMILL_JUDGE_MODEL", "m")
    monkeypatch.setenv("KVMILL_CACHE", str(tmp_path))
    found = endpoint()
    assert (found.url, found.model, found.key, found.cache) == ("http://here/v1", "m", None, tmp_path / "judge")
