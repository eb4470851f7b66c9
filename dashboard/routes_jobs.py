"""Routes of jobs: submit a command, list, look, log, answer, cancel, resume, remove."""

from __future__ import annotations

from collections.abc import Callable

from .job import ENDED, STATES
from .jobs import LOG_BYTES
from .routes import Call, Failure, Parameter, Reply, Route, Schema
from .service import SERVED
from .verbs import HEAVY

_TIME = {"type": "string", "format": "date-time"}
_MAYBE_TIME = {"type": ["string", "null"], "format": "date-time"}
_MAYBE_TEXT, _MAYBE_NUMBER = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
JOB: Schema = {
    "title": "Job",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "verb": {"type": "string"},
        "arguments": {"type": "array", "items": {"type": "string"}},
        "by": {"type": "string"},
        "submitted": _TIME,
        "lane": {"enum": ["heavy", "light"]},
        "cwd": {"type": "string"},
        "state": {"enum": list(STATES)},
        "heartbeat": _TIME,
        "progress": {
            "type": ["object", "null"],
            "properties": {
                "label": {"type": "string"},
                "done": {"type": "integer"},
                "total": _MAYBE_NUMBER,
                "unit": {"type": "string"},
                "detail": {"type": "string"},
                "eta_s": {"type": ["number", "null"]},
            },
            "required": ["label", "done", "total", "unit", "detail", "eta_s"],
        },
        "pid": _MAYBE_NUMBER,
        "host": _MAYBE_TEXT,
        "exit_code": _MAYBE_NUMBER,
        "started": _MAYBE_TIME,
        "ended": _MAYBE_TIME,
        "run": _MAYBE_TEXT,
        "message": _MAYBE_TEXT,
    },
}
JOB = {**JOB, "required": list(JOB["properties"]), "additionalProperties": False}
# So that no id is the name of a command, whose path is another one.
JOB_ID = Parameter("job", {"type": "string", "maxLength": 64, "pattern": "^[0-9a-f-]+$"}, "A job's id.", "path")
_GONE = {404: "there is no such job", 503: "its record is damaged"}


def _submit(verb: str) -> Callable[[Call], Reply]:
    def handler(call: Call) -> Reply:
        return Reply(call.service.submit(verb, call.options, call.visitor).to_json(), 202)

    return handler


def _list(call: Call) -> Reply:
    jobs, damaged = call.service.jobs.found()
    state, verb = call.values["state"], call.values["verb"]
    found = [job for job in jobs if state in ("any", job.state) and verb in ("any", job.verb)]
    shown = [job.to_json() for job in found[: call.values["limit"]]]
    return Reply({"total": len(found), "jobs": shown, "damaged": damaged})


def _get(call: Call) -> Reply:
    return Reply(call.service.jobs.get(call.values["job"]).to_json())


def _log(call: Call) -> Reply:
    text = call.service.jobs.log(call.values["job"], call.values["last_bytes"])
    return Reply(text, media_type="text/plain; charset=utf-8")


def _result(call: Call) -> Reply:
    job = call.service.jobs.get(call.values["job"])
    found = call.service.jobs.result(job.id)
    if found is None:
        raise Failure(409, f"job {job.id} is {job.state} and has no answer" + ("" if job.ended else " yet"))
    return Reply(found)


def _cancel(call: Call) -> Reply:
    return Reply(call.service.cancel(call.values["job"], call.visitor).to_json(), 202)


def _resume(call: Call) -> Reply:
    return Reply(call.service.resume(call.values["job"], call.visitor).to_json(), 202)


def _remove(call: Call) -> Reply:
    call.service.remove(call.values["job"], call.visitor)
    return Reply({"removed": call.values["job"]})


def _submitting(verb: str) -> Route:
    waits = " It waits as `queued` while another heavy one runs." if verb in HEAVY else ""
    return Route(
        "POST",
        f"/api/v1/jobs/{verb.replace(' ', '-')}",
        f"Start `kvmill {verb}` as a job.{waits}",
        _submit(verb),
        {202: ("the job", JOB)},
        verb=verb,
        failures={403: "a path outside of the store and the input roots"},
    )


LIST: Schema = {
    "title": "Jobs",
    "type": "object",
    "properties": {
        "total": {"type": "integer"},
        "jobs": {"type": "array", "items": JOB},
        "damaged": {"type": "array", "items": {"type": "string"}, "description": "records that cannot be read"},
    },
    "required": ["total", "jobs", "damaged"],
}
REMOVED: Schema = {
    "title": "Removed",
    "type": "object",
    "properties": {"removed": {"type": "string"}},
    "required": ["removed"],
}
LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50}, "At most so many.")
_STATE = Parameter("state", {"type": "string", "enum": ["any", *STATES], "default": "any"}, "Only those in this state.")
_VERB = Parameter("verb", {"type": "string", "enum": ["any", *SERVED], "default": "any"}, "Only of this command.")
_LAST = Parameter(
    "last_bytes",
    {"type": "integer", "minimum": 1, "maximum": 1 << 20, "default": LOG_BYTES},
    "At most so much of its end.",
)
ROUTES = (
    *(_submitting(verb) for verb in SERVED),
    Route("GET", "/api/v1/jobs", "Jobs, newest first.", _list, {200: ("jobs", LIST)}, (_STATE, _VERB, LIMIT)),
    Route("GET", "/api/v1/jobs/{job}", "One job.", _get, {200: ("the job", JOB)}, (JOB_ID,), failures=_GONE),
    Route(
        "GET",
        "/api/v1/jobs/{job}/log",
        "The end of what a job said.",
        _log,
        {200: ("text", "text/plain; charset=utf-8")},
        (JOB_ID, _LAST),
        failures=_GONE,
    ),
    Route(
        "GET",
        "/api/v1/jobs/{job}/result",
        "What a job answered: the object that the command prints with --json.",
        _result,
        {200: ("the answer", {"type": "object"})},
        (JOB_ID,),
        failures=_GONE | {409: "it has no answer"},
    ),
    Route(
        "POST",
        "/api/v1/jobs/{job}/cancel",
        "Ask a job to end; what it finished is kept.",
        _cancel,
        {202: ("the job, soon cancelled", JOB)},
        (JOB_ID,),
        failures=_GONE | {409: f"it has ended: {', '.join(ENDED)}"},
    ),
    Route(
        "POST",
        "/api/v1/jobs/{job}/resume",
        "Go on with the replay of a job that ended early, as a new job.",
        _resume,
        {202: ("the new job", JOB)},
        (JOB_ID,),
        failures=_GONE | {409: "it began no replay run, or has not ended"},
    ),
    Route(
        "DELETE",
        "/api/v1/jobs/{job}",
        "Delete the record of a job that has ended; its runs stay.",
        _remove,
        {200: ("gone", REMOVED)},
        (JOB_ID,),
        failures=_GONE | {409: "it has not ended"},
    ),
)
