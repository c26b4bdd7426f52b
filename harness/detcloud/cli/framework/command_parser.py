"""Handlers of commands, and the argument parser that prints errors as a line and a hint."""

from __future__ import annotations

from argparse import REMAINDER, SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from detcloud.cli.framework.command import Command
from detcloud.cli.framework.command_examples import example_of
from detcloud.cli.framework.usage_error import report_usage_error


class Handler(NamedTuple):
    """Two functions of a command."""

    add_arguments: Callable[[ArgumentParser], None]
    """Adds the command's arguments to a parser."""
    run: Callable[[Namespace], int]
    """Runs the command with parsed arguments, and returns the exit code."""


Handlers = Mapping[str, Handler]
"""Handlers by `Command.name`, such as `experiment list`."""


def load_command(command: Command, typed: str) -> tuple[CommandParser, Callable[[Namespace], int]]:
    """Import a command's module. Return the command's argument parser and the function that runs
    the command.

    The parser has the command's arguments and, unless the command is local, `--url`. Its help ends
    with an example. The function gets the parsed arguments and returns an exit code. All errors of
    the import and of the module's HANDLERS are bugs.

    Args:
        command: an entry of the index.
        typed: the command's words as the user typed them. Help texts and errors show them.
    """
    handlers: Handlers = import_module(f"detcloud.cli.commands.{command.module}").HANDLERS
    handler = handlers[command.name]
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    parser = CommandParser(
        prog=f"detcloud {typed}",
        description=summary,
        epilog=f"example: {example_of(command)}",
        allow_abbrev=False,
    )
    if not command.is_local:
        parser.add_argument("--url", metavar="URL", help="the address of the cluster")
    handler.add_arguments(parser)
    return parser, handler.run


class CommandParser(ArgumentParser):
    """An argument parser that accepts options and arguments in any order.

    An error is printed as a line and a hint, as for all other errors of the command line.
    """

    def parse_command(self, words: list[str]) -> Namespace:
        """Parse the words after a command's name. Return the values of all arguments, with defaults
        for missing options.

        argparse assigns an optional argument as soon as the first required argument is read. A
        value that follows an option is then refused: `create FILE --paused DIR`. The intermixed
        mode of argparse reads all options first. That mode supports neither a program's arguments,
        which may look like options, nor an argument that excludes an option. Commands with these
        are parsed in the usual mode.

        A command with a default for `program` gets all words after the first `--` there, unparsed.

        Raises:
            SystemExit: a word is wrong (code 2, with an error and a hint on stderr), or help was
                requested and printed (code 0).
        """
        if self.get_default("program") is not None and "--" in words:
            end = words.index("--")
            self.set_defaults(program=words[end + 1 :])
            words = words[:end]
        excluded = [
            action for group in self._mutually_exclusive_groups for action in group._group_actions
        ]
        positionals = [action for action in self._actions if not action.option_strings]
        if any(action.nargs == REMAINDER or action in excluded for action in positionals):
            return self.parse_args(words)
        return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint to stderr, and exit with code 2.

        The hint names the known option closest to a wrong option. For all other errors, the hint
        names the command's `--help`.

        Raises:
            SystemExit: always.
        """
        hint = self._option_hint(message) or f"see `{self.prog} --help`"
        raise SystemExit(report_usage_error(message, hint))

    def print_help(self, file: Any = None) -> None:
        """Print and flush the help. argparse calls this method for `--help`, and then exits.

        Args:
            file: the stream to print to; None for stdout.

        Raises:
            OSError: the help cannot be written, for example because the disk is full.
        """
        print(self.format_help(), end="", file=file, flush=True)

    def _option_hint(self, message: str) -> str | None:
        """Return a hint with the known option that is closest in spelling to an unknown option.

        The hint is for an error message of argparse. Hidden options are never suggested. Return
        None for all other messages, for short options such as `-x`, and if no option is close.
        """
        place, _, words = message.partition("unrecognized arguments: ")
        unknown = words.partition(" ")[0].partition("=")[0]
        if place or not unknown.startswith("--"):
            return None
        known = [
            flag
            for action in self._actions
            if action.help != SUPPRESS  # a hidden option, which only prints its replacement
            for flag in action.option_strings
        ]
        close = get_close_matches(unknown, known, 1)
        return f"did you mean {close[0]}? see `{self.prog} --help`" if close else None
