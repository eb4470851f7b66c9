"""The log of a job: what its command said, kept to a size: the beginning and the end of it, whatever it said between.

The file is rewritten in place, so that whoever else appends to it (the supervisor's own words) still does.
"""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 4 << 20
KEPT_BYTES = 1 << 20  # of the beginning, and at least as many of the end
LINE_BYTES = 64 << 10  # of one line that are taken at once


class Log:
    """Appends to a file that never grows beyond `most` bytes by more than what is written at once.

    When it is full, the first `kept` bytes and the last `kept` stay, both in whole lines where there are lines, and a
    line between them says how many bytes are gone. 2 · `kept` must be well below `most`.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES, kept: int = KEPT_BYTES) -> None:
        self.most, self.kept = most, kept
        self._file = path.open("a+b", buffering=0)
        self._path, self._head, self._gone, self._notice = path, 0, 0, b""

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, text: bytes) -> None:
        """Add to the end."""
        self._file.write(text)
        if self._file.tell() > self.most:
            self._shorten()

    def _shorten(self) -> None:
        with self._path.open("r+b") as file:
            if not self._head:
                first = file.read(self.kept)
                self._head = first.rfind(b"\n") + 1 or len(first)
            file.seek(-self.kept, 2)
            begin, last = file.tell(), file.read()
            cut = last.find(b"\n") + 1 if b"\n" in last[:-1] else 0
            self._gone += begin + cut - self._head - len(self._notice)
            self._notice = b"\n[%d bytes of the log were left out here]\n" % self._gone
            file.seek(self._head)
            file.write(self._notice + last[cut:])
            file.truncate()
