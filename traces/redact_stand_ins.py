"""Stand-ins: other text of the same shape, the same for the same value, that nobody without the key can tell back."""

from __future__ import annotations

import hashlib
import re
import string

_POOLS = {c: pool for pool in (string.ascii_lowercase, string.ascii_uppercase, string.digits) for c in pool}
_CHANGED = re.compile(r"\\.|[A-Za-z0-9]", re.DOTALL)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_REMEMBERED = 20_000


class StandIns:
    """Derives stand-ins from values by a keyed hash: whoever lacks the key cannot confirm a guess."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]  # the longest key that BLAKE2 takes
        self._memory: dict[tuple[str, str, int], bytes] = {}

    def bytes(self, kind: str, value: str, count: int) -> bytes:
        """At least `count` bytes that follow from the key, the kind and the value."""
        blocks = 1 + count // 64
        known = self._memory.get((kind, value, blocks))
        if known is None:
            text = f"{kind}/{value}".encode(errors="replace")
            known = b"".join(
                hashlib.blake2b(n.to_bytes(4, "big") + text, key=self._key).digest() for n in range(blocks)
            )
            if len(self._memory) >= _REMEMBERED:
                self._memory.clear()
            self._memory[kind, value, blocks] = known
        return known

    def same_shape(self, kind: str, value: str, normal: str | None = None) -> str:
        """Letters for letters, digits for digits; punctuation and JSON escapes stay.

        `normal`: the form in which spellings of one value are equal.
        """
        stream = iter(self.bytes(kind, value if normal is None else normal, len(value)))

        def other(match: re.Match[str]) -> str:
            found = match.group()
            pool = _POOLS.get(found)
            return pool[next(stream) % len(pool)] if pool else found

        return _CHANGED.sub(other, value)

    def digits(self, kind: str, value: str, normal: str) -> str:
        """`len(value)` digits for the digits of `normal`."""
        return "".join(str(b % 10) for b in self.bytes(kind, normal, len(value))[: len(value)])

    def name(self, name: str) -> str:
        """A word that can be spoken for a person's name, as long and in the same letter case."""
        stream = iter(self.bytes("name", name.casefold(), len(name) + 1))
        turn = next(stream) % 2
        out = []
        for letter in name:
            if not letter.isalpha():
                out.append(letter)
                continue
            pool = _VOWELS if turn else _CONSONANTS
            turn = not turn
            drawn = pool[next(stream) % len(pool)]
            out.append(drawn.upper() if letter.isupper() else drawn)
        return "".join(out)


def spelled(value: str, digits: str) -> str:
    """`value` with its digits replaced one by one."""
    stream = iter(digits)
    return re.sub(r"\d", lambda _: next(stream), value)
