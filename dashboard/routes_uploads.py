"""Routes of uploads and of deleting traces."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool

from . import uploaded, uploads
from .routes import Call, Parameter, Reply, Route, Schema
from .routes_jobs import JOB, REMOVED

_PIECE_BYTES = 1 << 20  # written at once
UPLOAD: Schema = {
    "title": "Upload",
    "type": "object",
    "properties": {
        "upload": {"type": "string"},
        "name": {"type": "string"},
        "path": {"type": "string", "description": "give it to `traces ingest`"},
        "bytes": {"type": "integer"},
        "sha256": {"type": ["string", "null"]},
        "kept": {"type": "boolean", "description": "the file lies there still: it is deleted once it was ingested"},
        "read": {"type": ["object", "null"], "description": "what the last ingest made of it, with its job and run"},
    },
    "required": ["upload", "name", "path", "bytes", "sha256", "kept", "read"],
    "additionalProperties": False,
}
LIST: Schema = {
    "title": "Uploads",
    "type": "object",
    "properties": {"uploads": {"type": "array", "items": UPLOAD}},
    "required": ["uploads"],
}
_NAME = Parameter(
    "name",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^/\\\x00-\x20\x7f.][^/\\\x00-\x1f\x7f]*$"},
    "The file's name, without folders. Other letters become underscores.",
)
_UPLOAD = Parameter("upload", {"type": "string", "maxLength": 64}, "An upload's id.", "path")
_ID = Parameter(
    "id", {"type": "string", "minLength": 1, "maxLength": 300}, "A trajectory's id, or that of an ingest run.", "path"
)


async def _receive(call: Call) -> Reply:
    service, declared = call.service, call.request.headers.get("content-length", "")
    service.require_folder()
    expected = int(declared) if declared.isdigit() else None
    upload = await run_in_threadpool(
        uploads.Upload, service.uploads, call.values["name"], service.most_upload_bytes, expected
    )
    try:
        waiting = bytearray()
        async for piece in call.request.stream():
            waiting += piece
            if len(waiting) >= _PIECE_BYTES:
                await run_in_threadpool(upload.write, bytes(waiting))
                waiting.clear()
        await run_in_threadpool(upload.write, bytes(waiting))
        found = await run_in_threadpool(upload.finish)
    except BaseException:
        upload.abort()
        raise
    service.uploaded(found, call.visitor)
    call.counts.uploads += 1
    call.counts.upload_bytes += found.bytes
    return Reply(found.to_json(), 201)


def _list(call: Call) -> Reply:
    return Reply({"uploads": [found.to_json() for found in uploaded.uploads(call.service.uploads)]})


def _remove(call: Call) -> Reply:
    call.service.remove_upload(call.values["upload"], call.visitor)
    return Reply({"removed": call.values["upload"]})


def _delete_traces(call: Call) -> Reply:
    return Reply(call.service.delete_traces(call.values["id"], call.visitor).to_json(), 202)


ROUTES = (
    Route(
        "POST",
        "/api/v1/uploads",
        "Upload a file of traces. The body is the file itself; ingest its `path` afterwards.",
        _receive,
        {201: ("the upload", UPLOAD)},
        (_NAME,),
        streams=True,
        failures={413: "larger than what is taken", 507: "the disk is full"},
    ),
    Route("GET", "/api/v1/uploads", "Uploaded files, newest first.", _list, {200: ("uploads", LIST)}),
    Route(
        "DELETE",
        "/api/v1/uploads/{upload}",
        "Delete an uploaded file; what was ingested from it stays.",
        _remove,
        {200: ("gone", REMOVED)},
        (_UPLOAD,),
        failures={404: "there is no such upload"},
    ),
    Route(
        "DELETE",
        "/api/v1/traces/{id}",
        "Delete a trajectory, or all of one ingest, with everything derived from it, as a job.",
        _delete_traces,
        {202: ("the job that deletes", JOB)},
        (_ID,),
        failures={404: "there is no such trajectory or ingest", 503: "the store cannot be read"},
    ),
)
