"""The supervisor of one job, a process of its own: `python -m kvmill.dashboard.worker FOLDER`.

It waits for a slot, runs the command, and is the only one that writes the job's status: progress as it is said,
a heartbeat every 2 s, and how it ended. It holds the job's lock for as long as it lives.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ..errors import UserError
from ..traces import locks, manifest
from . import job as jobs_files
from . import slots, uploaded
from .job import CANCEL, LOG, RESULT, STATUS, Status
from .job_log import LINE_BYTES, Log

BEAT_S = 2.0
LOOK_S = 0.2
ANSWERED = (0, 4, 5, 6)  # exit codes of a command that gave its answer
# After a cancel: first the command may write down what it has, then it is told, then it is made to.
PATIENCE = ((0.0, signal.SIGINT), (10.0, signal.SIGTERM), (15.0, signal.SIGKILL))
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_PART = "result.part"


class Supervisor:
    """Runs the job in `folder` once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = jobs_files.read(folder).asked
        self.status = Status("queued", jobs_files.now(), pid=os.getpid(), host=socket.gethostname())
        self.stopped_by: str | None = None
        self.progress: dict[str, Any] | None = None
        self.last_words = ""
        self._written = 0.0

    def run(self) -> None:
        """From the queue to the end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._told)
        self._say()
        try:
            slot = self._wait()
            if slot is None:
                self._end("cancelled", message=self.stopped_by)
                return
            self._work()
        except Exception as error:
            self._end("failed", message=f"the supervisor failed: {type(error).__name__}: {error}")
            raise

    def _told(self, number: int, _frame: Any) -> None:
        self.stopped_by = f"stopped by {signal.Signals(number).name}"

    def _stop_asked(self) -> bool:
        if self.stopped_by is None and (self.folder / CANCEL).exists():
            by = json.loads((self.folder / CANCEL).read_bytes())["by"]
            self.stopped_by = f"cancelled by {by}"
        return self.stopped_by is not None

    def _wait(self) -> int | None:
        """The slot, or None if the job was cancelled before it had one."""
        jobs = self.folder.parent

        def still_waits(other: str) -> bool:
            try:
                return jobs_files.read(jobs / other).state == "queued"
            except UserError:
                return False

        while not self._stop_asked():
            slot = slots.take(jobs, self.asked.lane, self.asked.id, still_waits)
            if slot is not None:
                return slot
            self._beat()
            time.sleep(LOOK_S)
        slots.leave(jobs, self.asked.lane, self.asked.id)
        return None

    def _work(self) -> None:
        store = self.folder.parent.parent
        before = {path.name for path in store.glob("runs/*")}
        with (self.folder / _PART).open("wb") as out:
            child = self._start(store, out)
        self._say(state="running", started=jobs_files.now())
        reader = threading.Thread(target=self._listen, args=(child.stderr,), daemon=True)
        reader.start()
        stopped_at, next_step = None, 0
        while True:
            try:
                code = child.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                pass
            if self._stop_asked():
                stopped_at = stopped_at or time.monotonic()
                while next_step < len(PATIENCE) and time.monotonic() - stopped_at >= PATIENCE[next_step][0]:
                    _signal(child, PATIENCE[next_step][1])
                    next_step += 1
            self._beat(before)
        reader.join(BEAT_S)
        self._find_run(before)
        answered = self._keep_answer()
        self._note_uploads(store)
        if code in ANSWERED and answered:
            self._end("done", code, message=self.last_words if code else None)
        elif self.stopped_by:
            self._end("cancelled", code, message=self.stopped_by)
        else:
            self._end("failed", code, message=_how(code) if code < 0 else self.last_words or _how(code))

    def _start(self, store: Path, out: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key != "KVMILL_QUIET"}
        environment |= {
            "KVMILL_STORE": str(store),
            "KVMILL_JOB": self.asked.id,
            "KVMILL_PROGRESS": "json",
            "PYTHONUNBUFFERED": "1",
        }
        library = ctypes.CDLL(None)

        def die_with_parent() -> None:
            library.prctl(_DIE_WITH_PARENT, signal.SIGTERM)

        return subprocess.Popen(
            [sys.executable, "-P", "-m", "kvmill", *self.asked.verb.split(), "--json", *self.asked.arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
            # A killed supervisor must leave nobody working unseen.
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 (one thread so far)
        )

    def _listen(self, stderr: IO[bytes]) -> None:
        """Progress goes to the status, every other line to the log."""
        with Log(self.folder / LOG) as log:
            while line := stderr.readline(LINE_BYTES):
                progress = _progress(line)
                if progress is None:
                    log.write(line)
                    self.last_words = line.decode(errors="replace").strip() or self.last_words
                else:
                    self.progress = progress

    def _keep_answer(self) -> bool:
        """Whether the command answered with an object: it becomes the result; other words go to the log."""
        part = self.folder / _PART
        raw = part.read_bytes()
        try:
            answered = isinstance(json.loads(raw), dict)
        except ValueError:
            answered = False
        if answered:
            part.rename(self.folder / RESULT)
            return True
        with Log(self.folder / LOG) as log:
            log.write(raw)
        part.unlink()
        return False

    def _note_uploads(self, store: Path) -> None:
        """What an ingest has read of the uploads needs to lie here no longer."""
        if self.asked.verb == "traces ingest":
            result = self.folder / RESULT
            answer = json.loads(result.read_bytes()) if result.exists() else None
            words, cwd = self.asked.arguments, Path(self.asked.cwd)
            uploaded.note_read(store / "uploads", words, cwd, self.asked.id, answer)

    def _find_run(self, before: set[str]) -> None:
        """The newest run that says that this job began it; a resumed one is named in the arguments."""
        store = self.folder.parent.parent
        resumed = [word.removeprefix("--resume=") for word in self.asked.arguments if word.startswith("--resume=")]
        found = resumed[-1] if resumed else self.status.run
        mine = []
        for path in store.glob("runs/*"):
            if path.name not in before and (path / manifest.NAME).exists():  # else it is being begun at this moment
                info = manifest.read(path)
                if info.config.get("job") == self.asked.id:
                    mine.append((info.created_at, info.run_id))
        self.status = replace(self.status, run=max(mine)[1] if mine else found)

    def _beat(self, before: set[str] | None = None) -> None:
        """Write the status if it is time to, sooner where there is progress to tell."""
        told = self.progress is self.status.progress
        if time.monotonic() - self._written >= (BEAT_S if told else BEAT_S / 4):
            if before is not None and self.status.run is None:
                self._find_run(before)
            self._say()

    def _say(self, **changes: Any) -> None:
        self.status = replace(self.status, heartbeat=jobs_files.now(), progress=self.progress, **changes)
        jobs_files.write(self.folder / STATUS, self.status)
        self._written = time.monotonic()

    def _end(self, state: str, code: int | None = None, message: str | None = None) -> None:
        self._say(state=state, exit_code=code, ended=jobs_files.now(), message=message)


def _progress(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b'{"progress":'):
        return None
    try:
        return json.loads(line)["progress"]
    except ValueError:
        return None


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    """The interrupt is for the command alone, which ends its helpers itself; what follows is for all of them."""
    try:
        if number == signal.SIGINT:
            os.kill(child.pid, number)
        else:
            os.killpg(child.pid, number)
    except ProcessLookupError:
        pass


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
    return f"exit code {code} without a word"


def main() -> None:
    """Run the job in the folder that is the one argument."""
    folder = Path(sys.argv[1]).resolve()
    # A reader that looks whether the job is alive holds the lock for a moment.
    for _ in range(50):
        if locks.acquire(folder):
            Supervisor(folder).run()
            return
        time.sleep(0.02)
    raise SystemExit(f"{folder}: another supervisor runs this job")


if __name__ == "__main__":
    main()
