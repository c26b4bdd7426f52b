"""The parser of commands: options and arguments in any order."""

from argparse import REMAINDER, Namespace

import pytest

from detcloud.cli.framework.command import Command
from detcloud.cli.framework.command_index import COMMANDS
from detcloud.cli.framework.command_parser import CommandParser, load_command
from tests.unit.cli.conftest import Detcloud
from tests.unit.cli.parser_actions import actions_of

# VALUE is valid for ids, priorities, counts and file names; VALUES has the rest by metavar.
VALUE = "7"
VALUES = {"KEY=VALUE": "a=1", "JOB.OPERATION=VALUE": "7.priority=1"}


def parser_of(command: Command) -> CommandParser:
    return load_command(command, command.name)[0]


def has_movable_arguments(command: Command) -> bool:
    """Return whether the command has several arguments and no program's command line among them."""
    arguments = [action for action in actions_of(parser_of(command)) if not action.option_strings]
    if any(action.nargs == REMAINDER for action in arguments):
        return False
    return len(arguments) > 1 or any(action.nargs in ("*", "+") for action in arguments)


def values_for(command: Command) -> list[str]:
    """Return a valid word for each positional argument, and two words for a repeatable argument."""
    words = []
    for action in actions_of(parser_of(command)):
        if not action.option_strings:
            choices = list(action.choices or ())
            value = str(choices[0]) if choices else VALUES.get(str(action.metavar), VALUE)
            words += [value] * (2 if action.nargs in ("*", "+") else 1)
    return words


def parse(command: Command, words: list[str]) -> Namespace:
    return parser_of(command).parse_command(words)


MOVABLE = [command for command in COMMANDS if has_movable_arguments(command)]


@pytest.mark.parametrize("command", MOVABLE, ids=lambda command: command.name)
def test_options_may_follow_any_argument(command: Command) -> None:
    values = values_for(command)
    option = ["--url", "http://127.0.0.1:1"]
    first = parse(command, [*option, *values])
    for place in range(1, len(values) + 1):
        assert parse(command, [*values[:place], *option, *values[place:]]) == first


def test_create_accepts_the_folder_after_options() -> None:
    [create] = [command for command in COMMANDS if command.name == "experiment create"]
    parsed = parse(create, ["c.yaml", "--config", "a=1", "--paused", "model"])
    assert (str(parsed.config), str(parsed.model_dir), parsed.paused) == ("c.yaml", "model", True)


def test_surplus_argument_is_named(detcloud: Detcloud) -> None:
    done = detcloud("wait", "1", "--json", "2")
    assert done.code == 2
    assert done.err.startswith("error: unrecognized arguments: 2\n")


def test_options_of_a_program_stay_with_the_program() -> None:
    [run] = [command for command in COMMANDS if command.name == "command run"]
    assert parse(run, ["--detach", "ls", "--json", "-d"]).words == ["ls", "--json", "-d"]
