"""What a request may ask of a command: pydantic models made of the command line's own options."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from ..errors import UserError, unknown
from .verbs import Option, options_of

LONGEST_TEXT, MOST_ITEMS, LARGEST = 2_000, 200, 2**53
_TEXT = r"^[^\x00-\x1f\x7f]+$"  # no word of a command line holds control characters


class NotJson(UserError):
    """The body is not JSON."""


@cache
def model_of(verb: str) -> type[BaseModel]:
    """The body of a request for a command: one field per option, strict, nothing else."""
    fields: dict[str, Any] = {option.name: _field(option) for option in options_of(verb)}
    name = "".join(part.capitalize() for part in verb.split())
    model = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)
    model.__doc__ = f"Options of `kvmill {verb}`."
    return model


def read_body(verb: str, raw: bytes) -> dict[str, Any]:
    """The options in a request's body. UserError naming the key that is wrong; an unknown one lists those there are."""
    model = model_of(verb)
    try:
        found = model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise NotJson(f"the body is not JSON: {first['msg']}") from None
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise unknown("option", where, model.model_fields, f"`kvmill {verb}`") from None
        raise UserError(f"{where or 'the body'}: {first['msg']}") from None
    return found.model_dump(exclude_none=True)


def _field(option: Option) -> tuple[Any, Any]:
    kind: Any = _kind(option)
    if option.many:
        kind = Annotated[list[kind], Field(max_length=MOST_ITEMS, min_length=1 if option.required else 0)]
    told = option.doc if option.default in (None, False) else f"{option.doc} (default: {option.default})"
    return (kind, Field(description=told)) if option.required else (kind | None, Field(default=None, description=told))


def _kind(option: Option) -> Any:
    if option.kind is bool:
        return bool
    if option.kind is str:
        return Annotated[str, Field(max_length=LONGEST_TEXT, pattern=_TEXT)]
    least = -LARGEST if option.least is None else option.least
    most = LARGEST if option.most is None else option.most
    bounds = Field(ge=option.kind(least), le=option.kind(most), allow_inf_nan=None if option.kind is int else False)
    return Annotated[int, bounds, BeforeValidator(_whole)] if option.kind is int else Annotated[float, bounds]


def _whole(value: Any) -> Any:
    """`30.0` is an integer to JSON, and so to its schemas."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
