"""The entry point: prints help or the version, or runs the command that the words name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from detcloud.cli.framework.command_index import (
    NOUN_ALIASES,
    NOUNS,
    Command,
    commands_by_verb,
    flat_commands,
)
from detcloud.cli.framework.exit_codes import INTERRUPTED, OK, USAGE
from detcloud.cli.framework.overview import render_noun_overview, render_overview
from detcloud.cli.framework.usage_error import UsageError, report_usage_error
from detcloud.cli.rendering.streams import prepare_streams
from detcloud.shared.errors import LeftOutWarning
from detcloud.shared.version import __version__

# The functions below import what `--version` and `--help` do not need, as bench/commands.py
# measures them (docs/benchmarks.md); modules of commands are imported when their command runs.


def main(argv: Sequence[str] | None = None) -> int:
    """Run `detcloud ARGV` and return one of `exit_codes.EXIT_CODES`."""
    prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except UsageError as error:
        return report_usage_error(str(error), error.hint)
    except Exception as error:
        from detcloud.cli.framework.failures import report_failure

        return report_failure(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _run(words: list[str]) -> int:
    url, words = _split_leading_url(words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(render_overview())
        return OK
    if words[0] in ("-V", "-v", "--version"):
        print(f"detcloud {__version__}")
        return OK
    noun = NOUN_ALIASES.get(words[0], words[0])
    if noun in NOUNS and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(render_noun_overview(noun))
        return OK if len(words) > 1 else USAGE
    return _run_command(words, url)


def _split_leading_url(words: list[str]) -> tuple[str | None, list[str]]:
    """Take `--url URL` or `--url=URL` from the front of the words."""
    if words and words[0].startswith("--url="):
        return words[0].removeprefix("--url="), words[1:]
    if words and words[0] == "--url":
        if len(words) == 1:
            raise UsageError("--url needs an address", "such as --url http://127.0.0.1:8080")
        return words[1], words[2:]
    return None, words


def _run_command(words: list[str], url: str | None) -> int:
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
            f"`detcloud {typed}` does not accept --url: it concerns this machine only",
            f"see `detcloud {typed} --help`",
        )
    from detcloud.cli.framework.command_parser import load_command

    parser, run = load_command(command, typed)
    arguments = parser.parse_command(rest)
    url_after = getattr(arguments, "url", None)
    arguments.url = url if url_after is None else url_after
    arguments.client = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", LeftOutWarning)
            warnings.showwarning = _show_warning
            return run(arguments)
    finally:
        if arguments.client is not None:
            arguments.client.close()


def _show_warning(
    message: Warning | str, category: type[Warning], *place: object, **more: object
) -> None:
    """Print a warning of Python as a note, without the place in the code that emitted it."""
    from detcloud.cli.rendering.output import print_note
    from detcloud.cli.rendering.terminal import sanitize

    print_note(sanitize(str(message)))


def _find_command(words: list[str]) -> tuple[Command, str, list[str]]:
    """Return the command, how it was typed, and the words after it."""
    noun = NOUN_ALIASES.get(words[0], words[0])
    known = commands_by_verb(noun) if noun in NOUNS else flat_commands()
    place = 1 if noun in NOUNS else 0
    for length in (2, 1):
        word = " ".join(words[place : place + length])
        if word in known:
            end = place + len(word.split(" "))
            if noun == "deploy":
                # There the original has verbs behind the name of a cloud, a command here.
                _refuse_original(noun, words)
            return known[word], " ".join(words[:end]), words[end:]
    raise _unknown_command_error(noun, words, known)


def _unknown_option_error(word: str) -> UsageError:
    from detcloud.cli.framework.original_commands import REPLACED_OPTIONS

    option = word.partition("=")[0]
    hint = REPLACED_OPTIONS.get(option, "see `detcloud --help`")
    return UsageError(f"{option} is not a known option", hint)


def _refuse_original(noun: str, words: list[str]) -> None:
    """Raise the UsageError that says what replaces the original's command, if the words are one."""
    from detcloud.cli.framework.original_commands import find_replacement

    if replacement := find_replacement([noun, *words[1:]]):
        typed, instead = replacement
        raise UsageError(f"`detcloud {typed}` is not a known command", instead)


def _unknown_command_error(noun: str, words: list[str], known: dict[str, Command]) -> UsageError:
    from difflib import get_close_matches

    _refuse_original(noun, words)
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
        f"`detcloud {prefix}{typed}` is not a known command",
        hint or f"see `detcloud {prefix}--help`",
    )


if __name__ == "__main__":
    sys.exit(main())
