"""From the words of a command line to the command that they name, and its run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

from detcloud.cli.framework.command_index import (
    NOUN_ALIASES,
    NOUNS,
    Command,
    commands_by_verb,
    flat_commands,
)
from detcloud.cli.framework.command_parser import CommandParser
from detcloud.cli.framework.handler import Handlers
from detcloud.cli.framework.original_commands import REPLACED_OPTIONS, find_replacement
from detcloud.cli.framework.usage_error import UsageError


def run_command(words: list[str], url: str | None) -> int:
    """Run the command that `words` name; `url` is the one that stood before them.

    Raises:
        UsageError: they name none.
        SystemExit: its arguments are wrong, or ask for help.
    """
    if words[0].startswith("-"):
        raise _unknown_option_error(words[0])
    command, typed, rest = _find_command(words)
    if url is not None and command.is_local:
        raise UsageError(
            f"`detcloud {typed}` takes no --url: it concerns this machine only",
            f"see `detcloud {typed} --help`",
        )
    parser, run = load_command(command, typed)
    arguments = parser.parse_args(rest)
    url_after = getattr(arguments, "url", None)
    arguments.url = url if url_after is None else url_after
    arguments.client = None
    try:
        return run(arguments)
    finally:
        if arguments.client is not None:
            arguments.client.close()


def load_command(command: Command, typed: str) -> tuple[ArgumentParser, Callable[[Namespace], int]]:
    """Import a command's module, and return the command's parser, named as the command was typed,
    and the function that runs it.
    """
    handlers: Handlers = import_module(f"detcloud.cli.commands.{command.module}").HANDLERS
    handler = handlers[command.name]
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    parser = CommandParser(prog=f"detcloud {typed}", description=summary, allow_abbrev=False)
    if not command.is_local:
        parser.add_argument("--url", metavar="URL", help="the cluster to speak to")
    handler.add_arguments(parser)
    return parser, handler.run


def _find_command(words: list[str]) -> tuple[Command, str, list[str]]:
    """Return the command, how it was typed, and the words after it."""
    noun = NOUN_ALIASES.get(words[0], words[0])
    known = commands_by_verb(noun) if noun in NOUNS else flat_commands()
    place = 1 if noun in NOUNS else 0
    for length in (2, 1):
        word = " ".join(words[place : place + length])
        if word in known:
            end = place + len(word.split(" "))
            return known[word], " ".join(words[:end]), words[end:]
    raise _unknown_command_error(noun, words, known)


def _unknown_option_error(word: str) -> UsageError:
    option = word.partition("=")[0]
    hint = REPLACED_OPTIONS.get(option, "see `detcloud --help`")
    return UsageError(f"{option} is no option here", hint)


def _unknown_command_error(noun: str, words: list[str], known: dict[str, Command]) -> UsageError:
    if replacement := find_replacement([noun, *words[1:]]):
        typed, instead = replacement
        return UsageError(f"`detcloud {typed}` is no command here", instead)
    is_verb = noun in NOUNS
    prefix = f"{noun} " if is_verb else ""
    typed = words[1] if is_verb else words[0]
    longer = [f"`detcloud {prefix}{word}`" for word in known if word.startswith(f"{typed} ")]
    if longer:
        return UsageError(
            f"`detcloud {prefix}{typed}` needs one more word", f"there is {', '.join(longer)}"
        )
    candidates = [*known, *([] if is_verb else NOUNS)]
    # A verb that needs its noun is meant as it is.
    nouns = [] if is_verb else [other for other in NOUNS if typed in commands_by_verb(other)]
    close = [f"{nouns[0]} {typed}"] if nouns else get_close_matches(typed, candidates, 1)
    hint = f"did you mean `detcloud {prefix}{close[0]}`?" if close else None
    return UsageError(
        f"`detcloud {prefix}{typed}` is no command", hint or f"see `detcloud {prefix}--help`"
    )
