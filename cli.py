"""The command line: joins the commands of every folder. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from . import __version__
from .console import lenient_streams, note
from .dashboard.verbs import FOLDERS as ANSWERING
from .errors import UserError, unknown

FOLDERS = (*ANSWERING, "kvmill.dashboard.commands", "kvmill.benchmarks.commands")
HELP = "How many GPUs can be given back by compacting the KV cache of LLM agents, and at what cost."


def _usage_error(error: UserError) -> NoReturn:
    note(f"error: {error}")
    raise typer.Exit(error.exit_code)


def _explain(error: Exception, command: Any, ctx: Any) -> None:
    """A usage error becomes one line: of an unknown flag with the known ones, of a missing one with all required."""
    # typer carries its own copy of click, whose classes are not public: go by the name.
    kind, params = type(error).__name__, command.get_params(ctx)
    message, param = getattr(error, "message", None), getattr(error, "param", None)
    if kind == "NoSuchOption":
        flags = [flag for param in params for flag in param.opts if flag.startswith("--")]
        _usage_error(unknown("flag", getattr(error, "option_name", "?"), flags, ctx.command_path))
    if kind == "MissingParameter" and param is not None:
        required = ", ".join(_spelled(param) for param in params if param.required)
        _usage_error(UserError(f"{_spelled(param)} is missing; {ctx.command_path} needs {required}"))
    if message and kind != "NoArgsIsHelpError":
        where = ctx.command_path if param is None else _spelled(param)
        _usage_error(UserError(f"{where}: {message.rstrip('.')}; see {ctx.command_path} --help"))


def _spelled(param: Any) -> str:
    """A flag as it is written, an argument as the help calls it."""
    flag = next((text for text in param.opts if text.startswith("--")), None)
    return flag or param.metavar or (param.name or "").upper()


class Command(TyperCommand):
    """A command whose answer to an unknown flag lists the known ones."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, but with a list instead of a guess."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _explain(error, self, ctx)
            raise


class Group(TyperGroup):
    """A group whose answer to an unknown command or flag lists the known ones."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, but with a list instead of a guess."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _explain(error, self, ctx)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does, but with a list instead of a guess."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            _usage_error(unknown("command", name, self.list_commands(ctx), ctx.command_path))
        return super().resolve_command(ctx, args)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvmill {__version__}")
        raise typer.Exit()


def _tokenizer(model: str) -> Any:
    """For commands of `traces`, which may not reach for models themselves."""
    try:
        from .replay.model import load_tokenizer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvmill"):
            raise
        raise UserError(f"a model's tokenizer needs {error.name}: pip install 'kvmill[replay]'") from None
    return load_tokenizer(model)


def _adopt(app: typer.Typer) -> None:
    """Give every command and group below `app` the classes above."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance:
            _adopt(group.typer_instance)


def build() -> typer.Typer:
    """The whole application."""
    app = typer.Typer(
        cls=Group,
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        pretty_exceptions_show_locals=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": 120},
    )

    @app.callback()
    def root(
        context: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        context.obj = _tokenizer

    for name in FOLDERS:
        import_module(name).register(app)
    _adopt(app)
    return app


def main() -> None:
    """Entry point of `kvmill`. Unexpected exceptions print their traceback and exit 1."""
    lenient_streams()
    build()(prog_name="kvmill")
