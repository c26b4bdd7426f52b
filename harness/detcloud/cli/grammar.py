"""What may stand where on the command line, read off the registration and the parsers."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from detcloud.cli.commands import COMMANDS, NOUN_ALIASES, NOUNS, Command, flat_words, words_of
from detcloud.cli.main import loaded


class Option(NamedTuple):
    """A flag in all its spellings, and what follows it."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    takes_path: bool


class Argument(NamedTuple):
    """A positional argument."""

    name: str
    help: str
    choices: tuple[str, ...]
    takes_path: bool


class Form(NamedTuple):
    """What one command takes."""

    command: Command
    usage: str
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]


def forms() -> dict[str, Form]:
    """Every command by its place; the same code under two nouns is one form."""
    return {command.place: _form(command) for command in COMMANDS}


def spellings() -> Iterator[tuple[str, Command]]:
    """Every way to type every command: flat, by noun and by its alias."""
    yield from flat_words().items()
    for noun in NOUNS:
        names = [noun, *(short for short, whole in NOUN_ALIASES.items() if whole == noun)]
        for verb, command in words_of(noun).items():
            for name in names:
                yield f"{name} {verb}", command


def typed_as(command: Command) -> str:
    """How the command is written where one way is enough."""
    return f"{command.noun} {command.verb}".strip()


def _form(command: Command) -> Form:
    parser, _ = loaded(command, typed_as(command))
    shown = [action for action in parser._actions if action.help != SUPPRESS]
    options = [_option(action) for action in shown if action.option_strings]
    arguments = [_argument(action) for action in shown if not action.option_strings]
    return Form(command, _usage(parser), tuple(options), tuple(arguments))


def _option(action: Action) -> Option:
    return Option(
        tuple(action.option_strings),
        action.help or "",
        action.nargs != 0,
        tuple(map(str, action.choices or ())),
        action.type is Path,
    )


def _argument(action: Action) -> Argument:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    return Argument(
        metavar, action.help or "", tuple(map(str, action.choices or ())), action.type is Path
    )


def _usage(parser: ArgumentParser) -> str:
    return " ".join(parser.format_usage().removeprefix("usage: ").split())
