import inspect
from typing import Any

from kvmill.simulator.commands import plan_command, simulate_command
from kvmill.simulator.flags import load_flags, machine_flags, sharing
from kvmill.simulator.given import FILL, KNOWN, REPLICA


def names(function):
    return list(inspect.signature(function).parameters)


def test_both_commands_have_every_shared_flag():
    shared = names(load_flags) + names(machine_flags)
    for command in (plan_command, simulate_command):
        assert not [name for name in shared if name not in names(command)]
        assert "shared" not in names(command)


def test_every_shared_flag_is_one_that_a_simulation_takes():
    for name in names(load_flags) + names(machine_flags):
        assert name in (*FILL, *REPLICA, *KNOWN)


def test_every_fill_and_replica_field_that_a_user_may_want_is_a_flag():
    inner = {"watermark", "activation_gib"}  # what the engine fixes, and what is measured
    flags = {*names(load_flags), *names(machine_flags)}
    assert {*FILL, *REPLICA} - flags <= inner


def test_a_command_keeps_its_own_flags_first():
    @sharing(load_flags)
    def command(one: str, two: int = 2, **shared: Any) -> None:
        """A command."""

    assert names(command)[:3] == ["one", "two", "agents"]
