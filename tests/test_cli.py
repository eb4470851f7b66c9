"""The command line itself: quick help, versions, unknown names, exit codes of bugs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from kvmill import __version__, cli

HEAVY = ("torch", "transformers", "triton", "pandas", "pyarrow", "duckdb", "scipy", "simpy", "streamlit", "numpy")
SCRIPT = f"""
import sys
from typer.testing import CliRunner
from kvmill.cli import build
result = CliRunner().invoke(build(), sys.argv[1:])
print(result.output)
print("heavy:", *[name for name in {HEAVY!r} if name in sys.modules])
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kvmill", *args], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return cli.build()


def commands(app: typer.Typer, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group below `app`, as words."""
    out: list[tuple[str, ...]] = []
    for command in app.registered_commands:
        assert command.callback is not None
        out.append((*path, command.name or command.callback.__name__.replace("_", "-")))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = group.name if isinstance(group.name, str) else group.typer_instance.info.name
        out += [(*path, str(name)), *commands(group.typer_instance, (*path, str(name)))]
    return out


def test_help_imports_nothing_heavy():
    out = subprocess.run([sys.executable, "-c", SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    assert "replay" in out
    assert out.strip().splitlines()[-1] == "heavy:"


def test_help_answers_quickly():
    spent = []
    for _ in range(3):
        started = time.perf_counter()
        assert run("--help").returncode == 0
        spent.append(time.perf_counter() - started)
    assert min(spent) < 1.0, "about 0.4 s on an idle machine; the limit leaves room for a busy one"


def test_every_command_of_the_contract_exists(app):
    have = {" ".join(words) for words in commands(app)}
    wanted = {
        "demo",
        "traces ingest",
        "traces list",
        "traces show",
        "traces check",
        "traces formats",
        "policies",
        "models list",
        "models pull",
        "replay",
        "results",
        "simulate",
        "plan",
        "store check",
        "store compact",
        "inspect",
        "sql",
        "dashboard",
        "bench",
        "nightly",
    }
    assert wanted <= have


def test_every_command_explains_itself(app):
    runner = CliRunner()
    for words in commands(app):
        result = runner.invoke(app, [*words, "--help"])
        assert result.exit_code == 0, words
        about = result.output.split("\n\n")[1].strip()
        assert about.endswith("."), f"kvmill {' '.join(words)} has no sentence of help"


def test_version():
    out = run("--version")
    assert (out.returncode, out.stdout) == (0, f"kvmill {__version__}\n")


def test_unknown_command_lists_the_known_ones():
    out = run("replai")
    assert out.returncode == 2
    assert out.stdout == ""
    assert out.stderr.startswith("error: unknown command 'replai' in kvmill. Did you mean 'replay'? Known: ")
    assert out.stderr.count("\n") == 1


def test_unknown_command_of_a_group_and_unknown_flag_list_the_known_ones(app):
    runner = CliRunner()
    result = runner.invoke(app, ["traces", "lst"])
    assert result.exit_code == 2
    assert "'list'" in result.stderr
    result = runner.invoke(app, ["policies", "--jsn"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown flag '--jsn' in ")
    assert "Did you mean '--json'? Known: --help, --json" in result.stderr
    assert runner.invoke(app, ["--vrsion"]).exit_code == 2


def test_a_bug_prints_its_traceback_without_locals_and_exits_1():
    script = (
        "import kvmill.cli as cli\n"
        "app = cli.build()\n"
        "@app.command()\n"
        "def boom():\n"
        "    secret = 'hunter2' + '!'\n"
        "    raise ZeroDivisionError('ours')\n"
        "cli._adopt(app)\n"
        "import sys; sys.argv = ['kvmill', 'boom']\n"
        "app()\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert out.returncode == 1
    assert "ZeroDivisionError: ours" in out.stderr
    assert "hunter2!" not in out.stderr


def test_bench_lists_what_there_is_and_refuses_what_there_is_not(app):
    runner = CliRunner()
    listed = runner.invoke(app, ["bench", "--json"])
    assert listed.exit_code == 0
    result = runner.invoke(app, ["bench", "nonsense"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown benchmark 'nonsense'. Known: ")


def test_a_missing_flag_is_one_line_that_says_what_is_needed(app):
    result = CliRunner().invoke(app, ["plan", "--workload", "samples"])
    assert result.exit_code == 2
    assert result.stderr.strip() == "error: --model is missing; root plan needs --workload, --model, --gpu"
    result = CliRunner().invoke(app, ["traces", "ingest"])
    assert result.stderr.strip() == "error: PATH is missing; root traces ingest needs PATH"


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["replay", "--limit", "0"], "--limit: "),
        (["plan", "--max-gpus", "many"], "--max-gpus: "),
        (["results", "one", "two"], "root results: "),
        (["replay", "--policy"], "root replay: "),
    ],
)
def test_a_value_that_cannot_be_is_one_line_that_says_where_to_look(app, words, begin):
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (2, "")
    line, *more = result.stderr.splitlines()
    assert not more
    assert line.startswith(f"error: {begin}")
    assert line.endswith(f"see root {words[0]} --help")


def test_options_have_a_sentence_of_help_and_shared_ones_the_same(app):
    shared: dict[str, set[str]] = {"--store": set(), "--json": set()}
    root = typer.main.get_command(app)
    for words in commands(app):
        command = root
        for word in words:
            command = command.commands[word]  # type: ignore[attr-defined]
        for option in command.params:
            text = getattr(option, "help", None) or ""
            assert text[-1:] in (".", "…"), f"kvmill {' '.join(words)} {option.opts}: {text!r}"
            for name in shared.keys() & set(option.opts):
                shared[name].add(text)
    shared["--json"].discard("The list as one JSON object.")  # of `bench`, whose benchmarks have their own
    assert {name: len(texts) for name, texts in shared.items()} == {"--store": 1, "--json": 1}
