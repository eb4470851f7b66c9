"""Which commands can be jobs, and their options: read from the command line itself, so that neither can drift."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from ..errors import UserError, unknown
from . import slots

# The folders whose commands answer with an object, in the order of the help; `cli` adds those that do not.
FOLDERS = (
    "kvmill.demo",
    "kvmill.nightly.commands",
    "kvmill.traces.commands",
    "kvmill.replay.commands",
    "kvmill.replay.judges.commands",
    "kvmill.simulator.commands",
    "kvmill.simulator.calibration.commands",
)
HEAVY = ("demo", "nightly", "replay", "plan", "validate", "judge")  # the machine has room for one of these at a time
OURS = ("store", "as_json", "context")  # set by the supervisor, or by typer
_NOT_A_JOB = {"--serve"}  # would never end


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command. `name` is its key in a request, `flag` its spelling ('' for an argument).

    `kind` is str, int, float or bool; `many` means a list of them; `off` is the spelling of a switch's no.
    """

    name: str
    flag: str
    kind: type
    many: bool
    required: bool
    default: Any
    doc: str
    off: str | None = None
    least: float | None = None
    most: float | None = None


@cache
def verbs() -> Mapping[str, tuple[Option, ...]]:
    """Every command that can be a job, with its options in the order of its help."""
    app = typer.Typer()
    for name in FOLDERS:
        import_module(name).register(app)
    return {verb: tuple(_options(call)) for verb, call in sorted(_commands(app, ()))}


def options_of(verb: str) -> tuple[Option, ...]:
    """The options of one command. UserError if it is no job."""
    if verb not in verbs():
        raise unknown("job", verb, verbs())
    return verbs()[verb]


def lane_of(verb: str) -> str:
    """The lane a command waits in."""
    return slots.HEAVY if verb in HEAVY else slots.LIGHT


def require_job(verb: str, arguments: Sequence[str]) -> None:
    """UserError unless the command can be a job and its arguments leave store and form of the answer alone."""
    options_of(verb)
    for word in arguments:
        flag = word.partition("=")[0]
        if flag in ("--store", "--json"):
            raise UserError(f"{flag}: a job answers in JSON and works on the store it belongs to; leave it out")
        if flag in _NOT_A_JOB:
            raise UserError(f"{flag}: a job has to end; leave it out")


def words(verb: str, options: Mapping[str, Any]) -> list[str]:
    """The arguments that mean `options`, as `{"policy": ["full"], "limit": 2}`. None means: not given.

    UserError for an option that the command does not have, listing those it has, and for one that is missing.
    """
    known = {option.name: option for option in options_of(verb)}
    for name in options:
        if name not in known:
            raise unknown("option", name, known, f"`kvmill {verb}`")
    flags, bare = [], []
    for option in known.values():
        value = options.get(option.name)
        if value is None or value == []:
            if option.required:
                raise UserError(f"`kvmill {verb}` needs {option.name}: {option.doc}")
        elif option.kind is bool:
            flags += [option.flag] if value else [option.off] if option.off else []
        elif option.flag:
            flags += [f"{option.flag}={item}" for item in (value if option.many else [value])]
        else:
            bare += [str(item) for item in (value if option.many else [value])]
    return [*flags, *(["--", *bare] if bare else [])]


def _commands(app: typer.Typer, before: tuple[str, ...]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in app.registered_commands:
        call = command.callback
        if call is not None and "as_json" in inspect.signature(call).parameters:
            name = command.name or call.__name__.replace("_", "-")
            yield " ".join((*before, name)), call
    for group in app.registered_groups:
        if group.typer_instance is not None and isinstance(group.name, str):
            yield from _commands(group.typer_instance, (*before, group.name))


def _options(call: Callable[..., Any]) -> Iterator[Option]:
    for parameter in inspect.signature(call, eval_str=True).parameters.values():
        if parameter.name in OURS:
            continue
        kind, info = typing.get_args(parameter.annotation)[:2]
        option = _option(parameter, kind, info)
        if option.flag not in _NOT_A_JOB:
            yield option


def _option(parameter: inspect.Parameter, kind: Any, info: OptionInfo | ArgumentInfo) -> Option:
    if isinstance(kind, types.UnionType):  # `X | None`
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    many = typing.get_origin(kind) is list
    plain = typing.get_args(kind)[0] if many else kind
    plain = str if plain is Path else plain
    # In Annotated, typer finds the first spelling where other functions have the default.
    spelled = [text for text in (info.default, *(info.param_decls or ())) if str(text).startswith("--")]
    flag = str(spelled[0]) if spelled else f"--{parameter.name.replace('_', '-')}"
    argument = isinstance(info, ArgumentInfo)
    on, _, off = flag.partition("/")
    if plain is bool and not spelled and not argument:
        off = f"--no-{parameter.name.replace('_', '-')}"  # what typer makes of a switch without a spelling
    required = parameter.default is inspect.Parameter.empty
    return Option(
        name=parameter.name if argument else on.removeprefix("--").replace("-", "_"),
        flag="" if argument else on,
        kind=plain,
        many=many,
        required=required,
        default=None if required else parameter.default,
        doc=info.help or "",
        off=off or None,
        least=info.min,
        most=info.max,
    )
