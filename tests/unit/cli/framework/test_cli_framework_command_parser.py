"""The parser of commands: options and arguments in any order."""

from argparse import REMAINDER, Namespace

import pytest

from detcloud.cli.framework.command_index import COMMANDS, Command
from detcloud.cli.framework.command_parser import CommandParser, load_command
from tests.unit.cli.conftest import Detcloud

# A value that ids, priorities, counts and names of files accept, and values of other arguments.
VALUE = "7"
VALUES = {"KEY=VALUE": "a=1", "JOB.OPERATION=VALUE": "7.priority=1"}


def parser_of(command: Command) -> CommandParser:
    return load_command(command, command.name)[0]


def has_movable_arguments(command: Command) -> bool:
    """Whether the command has several arguments, none of which is a program's command line."""
    arguments = [action for action in parser_of(command)._actions if not action.option_strings]
    if any(action.nargs == REMAINDER for action in arguments):
        return False
    return len(arguments) > 1 or any(action.nargs in ("*", "+") for action in arguments)


def values_for(command: Command) -> list[str]:
    """One word for each argument, and two for an argument that repeats."""
    words = []
    for action in parser_of(command)._actions:
        if not action.option_strings:
            choices = list(action.choices or ())
            value = str(choices[0]) if choices else VALUES.get(str(action.metavar), VALUE)
            words += [value] * (2 if action.nargs in ("*", "+") else 1)
    return words


def parse(command: Command, words: list[str]) -> Namespace:
    return parser_of(command).parse_command(words)


MOVABLE = [command for command in COMMANDS if has_movable_arguments(command)]


@pytest.mark.parametrize("command", MOVABLE, ids=lambda command: command.name)
def test_an_option_may_follow_any_argument(command: Command) -> None:
    values = values_for(command)
    option = ["--url", "http://127.0.0.1:1"]
    first = parse(command, [*option, *values])
    for place in range(1, len(values) + 1):
        assert parse(command, [*values[:place], *option, *values[place:]]) == first


def test_create_accepts_its_folder_after_options() -> None:
    [create] = [command for command in COMMANDS if command.name == "experiment create"]
    parsed = parse(create, ["c.yaml", "--config", "a=1", "--paused", "model"])
    assert (str(parsed.config), str(parsed.model_dir), parsed.paused) == ("c.yaml", "model", True)


def test_a_word_too_many_is_named(detcloud: Detcloud) -> None:
    done = detcloud("wait", "1", "--json", "2")
    assert done.code == 2
    assert done.err.startswith("error: unrecognized arguments: 2\n")


def test_words_of_a_program_stay_the_programs() -> None:
    [run] = [command for command in COMMANDS if command.name == "command run"]
    assert parse(run, ["--detach", "ls", "--json", "-d"]).words == ["ls", "--json", "-d"]
