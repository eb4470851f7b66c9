"""What was refused, kept beside the run: one JSON line each, with place, reason and the beginning of its text."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TextIO

from .items import MAX_RAW
from .reading import Item
from .redact import Redactor

REJECTS = "rejects.jsonl"
MAX_FILE_BYTES = 64_000_000
_MAX_REASONS = 1000
_OTHERS = "other reasons"
# What was streamed is cut into pieces of a few letters, and no rule sees a secret that lies in two of them.
_STREAMED = re.compile(r"\\{0,16}\"delta\\{0,16}\"\s{0,4}:")
_LAST_WORD = re.compile(r"[^\s\"',]{1,400}\Z")
_NOT_KEPT = "(a streamed answer, in pieces that cannot be redacted: not kept)"


class Rejects:
    """The reject file of one run, made with the first refusal. `redactor`: what is refused is redacted as well."""

    def __init__(self, folder: Path, redactor: Redactor | None) -> None:
        self.path = folder / REJECTS
        self.reasons: Counter[str] = Counter()
        self.left_out = 0
        self._redactor = redactor
        self._file: TextIO | None = None
        self._bytes = 0
        self._causes: dict[str, str] = {}

    def add(self, source: str, item: Item) -> None:
        """Count a refusal and write it down, as long as the file is not too long."""
        self.reasons[self._named(_cause(source, item.reason))] += 1
        if self._bytes >= MAX_FILE_BYTES:
            self.left_out += 1
            return
        reason, raw = self._redacted(item.reason), self._kept(item.raw[:MAX_RAW])
        line = json.dumps({"source": source, "line": item.place, "reason": reason, "raw": raw}) + "\n"
        self._bytes += len(line)
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8")
        self._file.write(line)

    def _named(self, cause: str) -> str:
        if cause not in self._causes and len(self._causes) < _MAX_REASONS:
            self._causes[cause] = self._redacted(cause)
        return self._causes.get(cause, _OTHERS)

    def _kept(self, raw: str) -> str:
        if self._redactor is None:
            return raw
        if _STREAMED.search(raw):
            return _NOT_KEPT
        if len(raw.encode(errors="replace")) >= MAX_RAW:
            raw = _LAST_WORD.sub("", raw)  # it may be the first half of a secret
        return self._redactor.text(raw)

    def _redacted(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.text(text)

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            self._file.close()


def _cause(source: str, reason: str) -> str:
    """A reason without what differs from file to file and from record to record: places, sizes, the file itself."""
    said = reason.replace(source, "").lstrip(": ").partition(". Known formats:")[0]
    return re.sub(r"(?<=\s)\d[\d,.]*(?!\w)", "N", said)
