"""The grammar of the command line: options and arguments of all commands, from the argument
parsers.
"""

from __future__ import annotations

from argparse import SUPPRESS, Action
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from detcloud.cli.framework.command import Command
from detcloud.cli.framework.command_index import COMMANDS, commands_by_verb, flat_commands
from detcloud.cli.framework.command_parser import load_command
from detcloud.cli.framework.nouns import NOUNS, noun_spellings


class Option(NamedTuple):
    """An option of a command."""

    flags: tuple[str, ...]
    """All spellings, such as `-q` and `--quiet`."""
    help: str
    """The help text, with defaults filled in."""
    takes_value: bool
    """Whether a value follows the flag."""
    choices: tuple[str, ...]
    """All accepted values, or empty if other values are accepted."""
    takes_path: bool
    """Whether the value is a path on this machine."""


class Argument(NamedTuple):
    """A positional argument of a command."""

    name: str
    """The name in the help, such as `EXPERIMENT`."""
    help: str
    """The help text, with defaults filled in."""
    choices: tuple[str, ...]
    """All accepted values, or empty if other values are accepted."""
    takes_path: bool
    """Whether the value is a path on this machine."""


class CommandForm(NamedTuple):
    """The options and arguments of a command."""

    command: Command
    """The entry of the index."""
    options: tuple[Option, ...]
    """All options in the order of the help, without hidden options."""
    arguments: tuple[Argument, ...]
    """All positional arguments in their order."""


def command_forms() -> dict[str, CommandForm]:
    """Return the form of every command by `Command.name`. Hidden options are omitted; `--help` and
    `--url` are included, the latter not for local commands.

    This imports the modules of all commands.
    """
    return {command.name: _read_form(command) for command in COMMANDS}


def command_spellings() -> Iterator[tuple[str, Command]]:
    """Yield every spelling with the command: flat forms, then `NOUN VERB` with each noun, short
    form and alias of the verb.
    """
    yield from flat_commands().items()
    for noun in NOUNS:
        for verb, command in commands_by_verb(noun).items():
            for name in noun_spellings(noun):
                yield f"{name} {verb}", command


def _read_form(command: Command) -> CommandForm:
    """Import a command's module and return the form of the command. Hidden options are omitted;
    `--help` is included, and `--url` unless the command is local.
    """
    parser, _ = load_command(command, command.name)
    documented = [action for action in parser._actions if action.help != SUPPRESS]
    options = [_read_option(action) for action in documented if action.option_strings]
    arguments = [_read_argument(action) for action in documented if not action.option_strings]
    return CommandForm(command, tuple(options), tuple(arguments))


def _read_option(action: Action) -> Option:
    """Return the description of an option of a parser."""
    return Option(
        tuple(action.option_strings),
        _help_of(action),
        action.nargs != 0,
        tuple(map(str, action.choices or ())),
        action.type is Path,
    )


def _read_argument(action: Action) -> Argument:
    """Return the description of a positional argument of a parser. Without a metavar, the name is
    the attribute of the parsed arguments.
    """
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    return Argument(
        metavar, _help_of(action), tuple(map(str, action.choices or ())), action.type is Path
    )


def _help_of(action: Action) -> str:
    """Return the help of an option or argument, or "" without help. References such as
    `%(default)s` are replaced.
    """
    return (action.help or "") % vars(action)
