"""The entry point: finds a command, builds its parser alone and turns errors into a line."""

from __future__ import annotations

import sys

import detcloud
from detcloud.cli.commands import (
    COMMANDS,
    EXIT_CODES,
    INTERRUPTED,
    NOUN_ALIASES,
    NOUNS,
    USAGE,
    Command,
    flat_words,
    words_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn


class UsageError(Exception):
    """The words given are no command: the message and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `detcloud ARGV` and returns one of `commands.EXIT_CODES`."""
    _open_closed_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except UsageError as error:
        _tell_usage(str(error), error.hint)
        return USAGE
    except Exception as error:
        from detcloud.cli.failures import report

        return report(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _tell_usage(message: str, hint: str) -> None:
    from detcloud.cli.terminal import clean

    print(f"error: {clean(message)}\nhint: {hint}", file=sys.stderr)


def _open_closed_streams() -> None:
    """Gives a command that was started with `>&-` somewhere to write, as with `>/dev/null`."""
    if sys.stdout is not None and sys.stderr is not None:
        return
    import os

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _run(words: list[str]) -> int:
    url, words = _leading_url(words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "-v", "--version"):
        print(f"detcloud {detcloud.__version__}")
        return 0
    if words[0].startswith("-"):
        raise _unknown_option(words[0])
    noun = NOUN_ALIASES.get(words[0], words[0])
    if noun in NOUNS and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(_noun_overview(noun))
        return 0 if len(words) > 1 else USAGE
    command, typed, rest = _found(noun, words)
    if url is not None and command.is_local:
        raise UsageError(
            f"`detcloud {typed}` takes no --url: it concerns this machine only",
            f"see `detcloud {typed} --help`",
        )
    parser, run = loaded(command, typed)
    arguments = parser.parse_args(rest)
    given = getattr(arguments, "url", None)
    arguments.url = url if given is None else given
    arguments.client = None
    try:
        return run(arguments)
    finally:
        if arguments.client is not None:
            arguments.client.close()


def _leading_url(words: list[str]) -> tuple[str | None, list[str]]:
    if words and words[0].startswith("--url="):
        return words[0].removeprefix("--url="), words[1:]
    if words and words[0] == "--url":
        if len(words) == 1:
            raise UsageError("--url needs an address", "such as --url http://127.0.0.1:8080")
        return words[1], words[2:]
    return None, words


def _found(noun: str, words: list[str]) -> tuple[Command, str, list[str]]:
    """The command, how it was typed, and the words after it."""
    known = words_of(noun) if noun in NOUNS else flat_words()
    place = 1 if noun in NOUNS else 0
    for length in (2, 1):
        word = " ".join(words[place : place + length])
        if word in known:
            end = place + len(word.split(" "))
            return known[word], " ".join(words[:end]), words[end:]
    raise _unknown(noun, words, known)


def _unknown_option(word: str) -> UsageError:
    from detcloud.cli.elsewhere import OPTIONS_ELSEWHERE

    option = word.partition("=")[0]
    hint = OPTIONS_ELSEWHERE.get(option, "see `detcloud --help`")
    return UsageError(f"{option} is no option here", hint)


def _unknown(noun: str, words: list[str], known: dict[str, Command]) -> UsageError:
    from difflib import get_close_matches

    from detcloud.cli.elsewhere import advice

    if found := advice([noun, *words[1:]]):
        return UsageError(f"`detcloud {found[0]}` is no command here", found[1])
    is_verb = noun in NOUNS
    prefix = f"{noun} " if is_verb else ""
    typed = words[1] if is_verb else words[0]
    group = [word for word in known if word.startswith(f"{typed} ")]
    if group:
        listed = ", ".join(f"`detcloud {prefix}{word}`" for word in group)
        return UsageError(f"`detcloud {prefix}{typed}` needs one more word", f"there is {listed}")
    candidates = [*known, *([] if is_verb else NOUNS)]
    # A verb that needs its noun is meant as it is.
    nouns = [] if is_verb else [other for other in NOUNS if typed in words_of(other)]
    close = [f"{nouns[0]} {typed}"] if nouns else get_close_matches(typed, candidates, 1)
    hint = f"did you mean `detcloud {prefix}{close[0]}`?" if close else None
    return UsageError(
        f"`detcloud {prefix}{typed}` is no command", hint or f"see `detcloud {prefix}--help`"
    )


def loaded(command: Command, typed: str) -> tuple[ArgumentParser, Callable[[Namespace], int]]:
    """A command's parser, named as it was typed, and the function that runs it."""
    from argparse import ArgumentParser
    from importlib import import_module

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            _tell_usage(message, _option_hint(self, message) or f"see `{self.prog} --help`")
            raise SystemExit(USAGE)

        def print_help(self, file: Any = None) -> None:
            # Flushed here, where a full disk is an error like any other.
            print(self.format_help(), end="", file=file, flush=True)

    module_name, function = command.place.split(":")
    module = import_module(f"detcloud.cli.{module_name}")
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    parser = Parser(prog=f"detcloud {typed}", description=summary, allow_abbrev=False)
    if not command.is_local:
        parser.add_argument("--url", metavar="URL", help="the cluster to speak to")
    getattr(module, f"{function.rstrip('_')}_arguments")(parser)
    run: Callable[[Namespace], int] = getattr(module, function)
    return parser, run


def _option_hint(parser: ArgumentParser, message: str) -> str | None:
    """The option that an unknown one resembles."""
    from argparse import SUPPRESS
    from difflib import get_close_matches

    unknown = message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
    if unknown == message or not unknown.startswith("--"):
        return None
    known = [
        flag
        for action in parser._actions
        if action.help != SUPPRESS  # accepted only to say what there is in its place
        for flag in action.option_strings
    ]
    close = get_close_matches(unknown, known, 1)
    return f"did you mean {close[0]}? see `{parser.prog} --help`" if close else None


def _overview() -> str:
    flat = [(command.flat[0], command.summary) for command in COMMANDS if command.flat]
    shorts = {noun: short for short, noun in NOUN_ALIASES.items()}
    nouns = [
        (f"{noun} ({shorts[noun]})" if noun in shorts else noun, summary)
        for noun, summary in NOUNS.items()
    ]
    return "\n".join(
        [
            "usage: detcloud [--url URL] COMMAND ...",
            "",
            "Submits machine-learning experiments to a cluster, in a cloud or on this machine.",
            "",
            "commands (an experiment's may be written `detcloud experiment COMMAND` too):",
            *_aligned(flat),
            "",
            "nouns, each with commands of its own, and their short forms:",
            *_aligned(nouns),
            "",
            "exit codes:",
            *_aligned([(str(code), meaning) for code, meaning in EXIT_CODES.items()]),
            "",
            "See `detcloud COMMAND --help` for options, `detcloud --version` for the version.",
        ]
    )


def _noun_overview(noun: str) -> str:
    verbs = [
        (", ".join((command.verb, *command.verb_aliases)), command.summary)
        for command in COMMANDS
        if command.noun == noun
    ]
    return "\n".join(
        [f"usage: detcloud {noun} COMMAND ...", "", f"{NOUNS[noun]}:", *_aligned(verbs)]
    )


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {summary}" for name, summary in rows]


if __name__ == "__main__":
    sys.exit(main())
