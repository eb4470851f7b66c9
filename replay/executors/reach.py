"""Whether the workers of a cluster write to the store that the driver lists: a token is left there, and looked for."""

from __future__ import annotations

import contextlib
import platform
import secrets
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...traces.places import is_uri
from ...traces.store import Store

_PREFIX = ".reach-"
_STALE_S = 24 * 3600.0  # without a finished job: its driver was killed


@dataclass(frozen=True, slots=True)
class Reach:
    """The store's place, and the token that lies there as long as the run lasts, if it is a folder."""

    place: str
    token: str

    @classmethod
    def opened(cls, store: Store) -> Reach:
        """Leave a token, and take away those of killed drivers. UserError where the store cannot be written."""
        found = cls(store.where, secrets.token_hex(8))
        if is_uri(found.place):  # it is the same one from everywhere
            return found
        try:
            found._file.parent.mkdir(parents=True, exist_ok=True)
            found._file.touch()
            found._sweep()
        except OSError as error:
            raise UserError(f"store {store} cannot be written ({error.strerror}); give a folder with --store") from None
        return found

    @property
    def _file(self) -> Path:
        return Path(self.place) / f"{_PREFIX}{self.token}"

    def _sweep(self) -> None:
        now = self._file.stat().st_mtime  # by the clock of the store, as theirs are
        for path in Path(self.place).glob(f"{_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > _STALE_S:
                    path.unlink()

    def stay(self) -> None:
        """Say that the run goes on: another one takes the token for a killed driver's after a day."""
        if not is_uri(self.place):
            with contextlib.suppress(OSError):
                self._file.touch()

    def store(self) -> Store:
        """The store, in a worker's process. UserError where it is another folder, or none, or cannot be reached."""
        if is_uri(self.place):
            store = Store.open(self.place)
            store.runs()
            return store
        if not self._file.is_file():
            raise UserError(
                f"machine {platform.node()} of the cluster does not see the store {self.place}: "
                "give a folder that all its machines share with --store, or an object store"
            )
        return Store.open(self.place)

    def close(self) -> None:
        """Take the token away."""
        if not is_uri(self.place):
            self._file.unlink(missing_ok=True)
