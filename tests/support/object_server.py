"""A real S3 server on loopback: moto's, with each request alone, counted, and with failures that tests ask for.

moto looks at a condition and writes afterwards, and its server has a thread per request: two could both find the
condition met. Object stores do not do that, so requests that change something wait for each other here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import botocore.session
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class _Quiet(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def _error(status: str, code: str, start: Any) -> list[bytes]:
    start(status, [("Content-Type", "application/xml"), ("Connection", "close")])
    return [f"<Error><Code>{code}</Code><Message>asked for</Message></Error>".encode()]


class ObjectServer:
    """`url`; `counts` of requests by kind; `answer`: the status and code that a request gets instead of being done;
    `lose_answers`: so many puts are done and then answered by an error; `ignore_conditions`: every put succeeds.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.answer: Callable[[str, str], tuple[str, str] | None] = lambda method, path: None
        self.ignore_conditions = False
        self.lose_answers = 0
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._alone = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._asked, threaded=True, request_handler=_Quiet)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _asked(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]
        kind = "LIST" if "list-type" in query else "DELETE" if "delete" in query.split("&") else method
        refused = self.answer(kind, path)
        if refused is not None:
            return _error(*refused, start)
        if self.ignore_conditions:
            environ = {key: value for key, value in environ.items() if key not in _CONDITIONS}
        with self._alone:
            self.counts[kind] += 1
            if kind == "PUT" and self.lose_answers:
                self.lose_answers -= 1
                list(self._moto(environ, lambda *answer: None))  # done, but who asked never hears of it
                return _error("503 Slow Down", "SlowDown", start)
            return list(self._moto(environ, start))

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """The requests made inside the block."""
        before, found = self.counts.copy(), Counter[str]()
        yield found
        found.update(self.counts - before)

    def make_bucket(self, name: str) -> None:
        """An empty bucket."""
        session = botocore.session.get_session()
        session.create_client("s3", region_name="us-east-1", endpoint_url=self.url).create_bucket(Bucket=name)

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
