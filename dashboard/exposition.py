"""`/metrics` as Prometheus reads it: prefix `kvmill_`, base units. What the store holds, and what this process saw."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from .. import __version__
from ..errors import UserError
from .job import STATES
from .service import SERVED, Service


@dataclass
class Counts:
    """What happened since the server started. `requests`: (method, path of the table, status) → how many."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    uploads: int = 0
    upload_bytes: int = 0
    started: float = field(default_factory=time.time)


def exposition(service: Service, counts: Counts) -> str:
    """The page. UserError if the store cannot be read."""
    jobs, damaged = service.jobs.found()
    states = Counter(job.state for job in jobs)
    succeeded: dict[str, float] = {}
    for job in jobs:
        if job.state == "done" and job.status.ended:
            at = datetime.fromisoformat(job.status.ended).timestamp()
            succeeded[job.verb] = max(at, succeeded.get(job.verb, 0.0))
    runs = Counter((run.kind, run.state) for run in service.store.runs())
    return "".join(
        [
            _family("build_info", "gauge", "Version of kvmill.", [({"version": __version__}, 1)]),
            _family("start_time_seconds", "gauge", "When the server started.", [({}, counts.started)]),
            _family("jobs", "gauge", "Jobs by state.", [({"state": state}, states[state]) for state in STATES]),
            _family("damaged_jobs", "gauge", "Jobs whose record cannot be read.", [({}, len(damaged))]),
            _family(
                "job_last_success_timestamp_seconds",
                "gauge",
                "When a job of the command last gave its answer; absent if it never did.",
                [({"verb": verb}, succeeded[verb]) for verb in SERVED if verb in succeeded],
            ),
            _family(
                "runs",
                "gauge",
                "Runs of the store by kind and state.",
                [({"kind": kind, "state": state}, number) for (kind, state), number in sorted(runs.items())],
            ),
            _family("uploads_total", "counter", "Files uploaded.", [({}, counts.uploads)]),
            _family("upload_bytes_total", "counter", "Bytes uploaded.", [({}, counts.upload_bytes)]),
            _family(
                "http_requests_total",
                "counter",
                "Requests of the API.",
                [
                    ({"method": method, "route": route, "status": str(status)}, number)
                    for (method, route, status), number in sorted(counts.requests.items())
                ],
            ),
        ]
    )


def readable(service: Service) -> str | None:
    """None if the store can be read (an empty one can), else why not."""
    try:
        service.store.runs()
    except (UserError, OSError) as error:
        return str(error)
    return None


def _family(name: str, kind: str, doc: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    lines = [f"# HELP kvmill_{name} {doc}", f"# TYPE kvmill_{name} {kind}"]
    for labels, value in samples:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"kvmill_{name}{{{told}}} {value!r}" if told else f"kvmill_{name} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
