"""`Values`: one object of a model configuration, read key by key; what cannot be used is an error that says where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import UserError

MOST = {"num_hidden_layers": 10_000}  # layers are listed one by one
KINDS = {"full_attention": "full", "sliding_attention": "sliding", "linear_attention": "linear"}


class Values:
    """The keys of one JSON object. A key that is absent has its family's default; one that is null is null.

    `where` names the object in errors. Defaults are those of the public configuration classes: such files leave out
    what equals them.
    """

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self._values = {**(defaults or {}), **values}
        self.where = where

    def over(self, defaults: Mapping[str, Any]) -> Values:
        """The same object with the defaults of a family below it."""
        return Values(self._values, self.where, defaults)

    def under(self, changes: Mapping[str, Any]) -> Values:
        """The same object with `changes` above it."""
        return Values(changes, self.where, self._values)

    def raw(self, key: str) -> Any:
        """Whatever is there; None when nothing is."""
        return self._values.get(key)

    def number(self, key: str) -> int:
        """A whole number of at least 1, or UserError."""
        value = self.raw(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a whole number of at least 1, not {value!r}")
        if value > MOST.get(key, 1 << 40):
            raise self.error(f"{key} is {value:,}, beyond anything that is built")
        return value

    def maybe(self, key: str) -> int | None:
        """The same, or None where nothing is said."""
        return None if self.raw(key) is None else self.number(key)

    def count(self, key: str) -> int:
        """A whole number of at least 0; 0 where nothing is said."""
        return 0 if self.raw(key) in (None, 0) else self.number(key)

    def flag(self, key: str) -> bool:
        """True or false; false where nothing is said."""
        value = self.raw(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return bool(value)

    def numbers(self, key: str) -> list[int]:
        """A list of whole numbers; empty where nothing is said."""
        value = self.raw(key) or []
        if not isinstance(value, list) or any(not isinstance(one, int) for one in value):
            raise self.error(f"{key} must be a list of whole numbers, not {value!r}")
        return value

    def part(self, key: str) -> Values | None:
        """The object under `key`, or None where nothing is said."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object, not {value!r}")
        return Values(value, f"{self.where}, {key}")

    def kinds(self, pattern: Callable[[int], str], allowed: tuple[str, ...]) -> list[str]:
        """The kind of every layer: `layer_types` where given, else `pattern` of its index.

        UserError for a kind that the family does not have, or a list that is not one entry per layer.
        """
        layers, given = self.number("num_hidden_layers"), self.raw("layer_types")
        if given is None:
            return [pattern(index) for index in range(layers)]
        if not isinstance(given, list) or len(given) != layers:
            raise self.error(f"layer_types must list one kind for each of {layers} layers")
        strange = sorted({str(kind) for kind in given if KINDS.get(str(kind)) not in allowed})
        if strange:
            raise self.error(
                f"layers of kind {', '.join(strange)} are not understood in a {self.raw('model_type')} model"
            )
        return [KINDS[kind] for kind in given]

    def error(self, what: str) -> UserError:
        """A UserError that says where."""
        return UserError(f"model configuration {self.where}: {what}")
