"""The three families of failure and the exit code of each.

* The user can fix it (`UserError`, `InputError`): one line saying what, where and what to do.
* No answer exists (`NoAnswer`): an answer, with the constraint that binds. Also exit code 4.
* Our bug: any other exception. It prints a traceback and exits 1.

`RegressionFound` and `Incomplete` are outcomes of a run that worked; they carry exit codes 5 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class KvmillError(Exception):
    """Base of every expected failure. `exit_code` is what the command line returns."""

    exit_code = 1


class UserError(KvmillError):
    """The user can fix it: a wrong flag, name, file or configuration key."""

    exit_code = 2


class InputError(UserError):
    """No record of some input could be accepted, or a record was rejected under `--strict`."""

    exit_code = 3


class NoAnswer(KvmillError):
    """No feasible answer exists; `constraint` names what binds."""

    exit_code = 4

    def __init__(self, message: str, constraint: str) -> None:
        super().__init__(message)
        self.constraint = constraint


class RegressionFound(KvmillError):
    """A gate found a regression."""

    exit_code = 5


class Incomplete(KvmillError):
    """The run ended, but some cells failed; their rows say why."""

    exit_code = 6


def unknown(what: str, given: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name nobody knows: says what was given, lists what is known, guesses the typo."""
    names = sorted(known)
    close = get_close_matches(given, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    place = f" in {where}" if where else ""
    return UserError(f"unknown {what} {given!r}{place}.{hint} Known: {', '.join(names) or 'none'}")
