"""Files that came in: a folder `uploads/ID/` with the file as it came, and beside it `ID.json`, which stays longer.

What came is not redacted. So once an ingest has read a file, the file is deleted and its record kept, unless
KVMILL_KEEP_UPLOADS is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..traces import manifest

KEEP = "KVMILL_KEEP_UPLOADS"
NAME = re.compile(r"\d{8}-\d{6}-\d{6}-[0-9a-f]{6}")
TOLD = ("format", "accepted", "rejected", "duplicates", "chained", "error")


class UnknownUpload(UserError):
    """There is no upload of this name."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A file that came in whole. `path` is relative to the store, where the paths of jobs begin.

    `kept`: it still lies there. `read`: the job that read it last, the run, and of TOLD what became of it; None before.
    """

    upload: str
    name: str
    path: str
    bytes: int
    sha256: str | None = None
    kept: bool = True
    read: Mapping[str, Any] | None = None

    @property
    def when(self) -> str:
        """When it came, in UTC."""
        day, time = self.upload.split("-")[:2]
        return f"{day[:4]}-{day[4:6]}-{day[6:]} {time[:2]}:{time[2:4]}:{time[4:]}"

    def to_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return asdict(self)


def keeps() -> bool:
    """Whether files stay after they were read: KEEP is set, and not to 0."""
    return os.environ.get(KEEP, "") not in ("", "0")


def record(folder: Path, found: Uploaded) -> None:
    """Write down what is known of an upload."""
    told = {name: value for name, value in found.to_json().items() if name != "kept"}
    manifest.replace(folder / f"{found.upload}.json", json.dumps(told, indent=1, allow_nan=False).encode())


def uploads(folder: Path) -> list[Uploaded]:
    """Every upload, newest first, those too whose file is gone."""
    known = {path.name.removesuffix(".json") for path in folder.glob("*-*")}
    found = (_of(folder, upload) for upload in sorted(known, reverse=True) if NAME.fullmatch(upload))
    return [one for one in found if one is not None]


def _of(folder: Path, upload: str) -> Uploaded | None:
    file = next(iter(sorted((folder / upload).glob("*"))), None)
    try:
        told = json.loads((folder / f"{upload}.json").read_bytes())
        found = Uploaded(**{field.name: told[field.name] for field in fields(Uploaded) if field.name in told})
    except (OSError, ValueError, TypeError):  # of before there were records, or damaged: the file tells enough
        if file is None:
            return None
        found = Uploaded(upload, file.name, f"{folder.name}/{upload}/{file.name}", file.stat().st_size)
    return replace(found, kept=file is not None)


def remove(folder: Path, upload: str) -> None:
    """Delete one upload and what is known of it. UnknownUpload if there is none of this name."""
    if not NAME.fullmatch(upload) or _of(folder, upload) is None:
        raise UnknownUpload(f"no upload {upload!r}; GET /api/v1/uploads lists them")
    discard(folder, upload)
    (folder / f"{upload}.json").unlink(missing_ok=True)


def discard(folder: Path, upload: str) -> None:
    """Delete the file of an upload; its record stays."""
    if (folder / upload).is_dir():
        gone = (folder / upload).rename(folder / f".{upload}")
        shutil.rmtree(gone)


def of_words(folder: Path, words: Sequence[str], cwd: Path) -> list[str]:
    """The uploads that the words of a command name, whose paths begin at `cwd`."""
    top, found = folder.resolve(), []
    for word in words:
        path = (cwd / word).resolve()
        if path != top and path.is_relative_to(top):
            found.append(path.relative_to(top).parts[0])
    return [upload for upload in dict.fromkeys(found) if NAME.fullmatch(upload)]


def note_read(folder: Path, words: Sequence[str], cwd: Path, job: str, answer: Mapping[str, Any] | None) -> None:
    """Write down what an ingest made of the uploads it was given; what it read whole is deleted unless `keeps`.

    `answer` is what `traces ingest --json` printed, None where it gave none. A file of which no record was taken stays.
    """
    files = {str(entry["path"]): entry for entry in (answer or {}).get("files", ())}
    for upload in of_words(folder, words, cwd):
        found = _of(folder, upload)
        if found is None:
            continue
        entry = next((files[path] for path in files if Path(path).parts[-2:] == (upload, found.name)), {})
        read = {"job": job, "run": (answer or {}).get("run")} | {key: entry.get(key) for key in TOLD}
        record(folder, replace(found, read=read))
        taken = sum(entry.get(key) or 0 for key in ("accepted", "duplicates", "chained"))
        if (taken or entry.get("part_of")) and not entry.get("error") and not keeps():
            discard(folder, upload)
