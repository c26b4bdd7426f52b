"""The entry point: prints help or the version, or runs the command that the words name."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from detcloud.cli.framework.command import Command
from detcloud.cli.framework.command_index import commands_by_verb, flat_commands
from detcloud.cli.framework.exit_codes import INTERRUPTED, OK, USAGE
from detcloud.cli.framework.nouns import NOUN_ALIASES, NOUNS
from detcloud.cli.framework.overview import render_noun_overview, render_overview
from detcloud.cli.framework.usage_error import UsageError, report_usage_error
from detcloud.cli.rendering.streams import prepare_streams
from detcloud.shared.errors import LeftOutWarning
from detcloud.shared.version import __version__

TRANSPORT_VARIABLES = frozenset(
    ("http_proxy", "https_proxy", "detcloud_ca_file", "det_master_cert_file")
)
"""The variables for proxies and authorities, in lower case, that clients of other libraries need in
their own form.
"""
# Modules that `--version` and `--help` do not need are imported inside functions: bench/commands.py
# measures the start (docs/benchmarks.md). A module of commands is imported when its command runs.


def main(argv: Sequence[str] | None = None) -> int:
    """Run `detcloud ARGV` and return the exit code, a key of `exit_codes.EXIT_CODES`. `detcloud
    command run` returns the exit code of the program instead.

    Errors of the command are not raised: they are printed to stderr, most with a hint, and become
    an exit code. Ctrl-C prints `interrupted` and returns INTERRUPTED. First, stdout and stderr are
    made able to write any text.

    Args:
        argv: the words after `detcloud`; None for the words of this process.

    Raises:
        SystemExit: an argument of the command is wrong (code 2), or help of a command was requested
            (code 0).
    """
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
    """Print the help or the version, or run the command. Return the exit code.

    Without words, print the overview to stdout and return OK. For a noun alone, print the noun's
    commands to stdout and return USAGE.

    Raises:
        UsageError: the words do not form a command.
        SystemExit: an argument of the command is wrong, or help of a command was requested.
        Exception: any error of the command, for example DetcloudError or OSError.
    """
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
    """Return the value of a leading `--url URL` or `--url=URL`, and the words after the option.

    Without a leading `--url`, return None and all words. The value is not checked.

    Raises:
        UsageError: no word follows `--url`.
    """
    if words and words[0].startswith("--url="):
        return words[0].removeprefix("--url="), words[1:]
    if words and words[0] == "--url":
        if len(words) == 1:
            raise UsageError("--url needs an address", "for example --url http://127.0.0.1:8080")
        return words[1], words[2:]
    return None, words


def _run_command(words: list[str], url: str | None) -> int:
    """Run the command at the beginning of `words`, and return the exit code.

    The command's module is imported. Afterwards, also after an error, close the client that the
    command opened. Warnings about left-out items are printed to stderr as notes.

    Args:
        words: at least one word.
        url: the value of an `--url` before the command, or None. An `--url` after the command has
            precedence.

    Raises:
        UsageError: `words` do not begin with a command, or the command does not accept `--url`.
        SystemExit: an argument of the command is wrong, or help was requested.
        Exception: any error of the command, for example DetcloudError or OSError.
    """
    if words[0].startswith("-"):
        raise _unknown_option_error(words[0])
    command, typed, rest = _find_command(words)
    if url is not None and command.is_local:
        raise UsageError(
            f"`detcloud {typed}` does not accept --url: the command uses this machine only",
            f"see `detcloud {typed} --help`",
        )
    from detcloud.cli.framework.command_parser import load_command

    parser, run = load_command(command, typed)
    arguments = parser.parse_command(rest)
    url_after = getattr(arguments, "url", None)
    arguments.url = url if url_after is None else url_after
    arguments.client = None
    if TRANSPORT_VARIABLES.intersection(map(str.lower, os.environ)):
        # Most machines have no such settings, and do without the import.
        from detcloud.shared.certificates import complete_environment

        complete_environment(os.environ)
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
    """Print a Python warning to stderr as a note, without the file and line of the code. Control
    characters are replaced.

    The function replaces `warnings.showwarning`, so that Python calls it.
    """
    from detcloud.cli.rendering.output import print_note
    from detcloud.cli.rendering.terminal import sanitize

    print_note(sanitize(str(message)))


def _find_command(words: list[str]) -> tuple[Command, str, list[str]]:
    """Return the command, the command's words as typed, and the words after the command.

    A command of two words has precedence over a command of one word.

    Args:
        words: at least one word. A noun may have its short form.

    Raises:
        UsageError: the words do not begin with a command. The hint has the replacement of a command
            of `det`, possible next words, or the closest known command.
    """
    noun = NOUN_ALIASES.get(words[0], words[0])
    known = commands_by_verb(noun) if noun in NOUNS else flat_commands()
    place = 1 if noun in NOUNS else 0
    for length in (2, 1):
        word = " ".join(words[place : place + length])
        if word in known:
            end = place + len(word.split(" "))
            # `deploy aws` is a command here; `det` has verbs after the cloud: `deploy aws up`. The
            # word after `dev` is a folder here, and a verb for `det`.
            if noun == "deploy" or (noun == "dev" and not _has_only_folders(words[1:2])):
                _refuse_original(noun, words)
            return known[word], " ".join(words[:end]), words[end:]
    raise _unknown_command_error(noun, words, known)


def _has_only_folders(words: list[str]) -> bool:
    """Return whether all words are paths of folders."""
    # Imported here, because no other code of the start needs the module, which takes 5 ms.
    from pathlib import Path

    return all(Path(word).is_dir() for word in words)


def _unknown_option_error(word: str) -> UsageError:
    """Return the error for an option in front of the command; nothing is raised. The hint has the
    replacement of an option of `det`, or names `--help`.
    """
    from detcloud.cli.framework.original_commands import REPLACED_OPTIONS

    option = word.partition("=")[0]
    hint = REPLACED_OPTIONS.get(option, "see `detcloud --help`")
    return UsageError(f"{option} is not a known option", hint)


def _refuse_original(noun: str, words: list[str]) -> None:
    """Raise a UsageError with the replacement if the words are a replaced command of `det`.
    Otherwise do nothing.

    Args:
        noun: the full noun for the first of the words, which may be a short form.
        words: the typed words, at least one.
    """
    from detcloud.cli.framework.original_commands import find_replacement

    if replacement := find_replacement([noun, *words[1:]]):
        typed, instead = replacement
        raise UsageError(f"`detcloud {typed}` is not a known command", instead)


def _unknown_command_error(noun: str, words: list[str], known: dict[str, Command]) -> UsageError:
    """Return the error for words without a command. The hint names possible next words, the closest
    known command, or the help.

    Args:
        noun: the full noun, or the first word if that is not a noun.
        words: the typed words, at least one.
        known: the commands of the noun by verb, or the flat commands if `noun` is not a noun.

    Raises:
        UsageError: the words are a replaced command of `det`. The hint has the replacement.
    """
    from difflib import get_close_matches

    _refuse_original(noun, words)
    is_verb = noun in NOUNS
    prefix = f"{noun} " if is_verb else ""
    typed = words[1] if is_verb else words[0]
    longer = [f"`detcloud {prefix}{word}`" for word in known if word.startswith(f"{typed} ")]
    if longer:
        return UsageError(
            f"`detcloud {prefix}{typed}` needs one more word", f"commands: {', '.join(longer)}"
        )
    candidates = [*known, *([] if is_verb else NOUNS)]
    # A verb without its noun is a better guess than a word with a similar spelling.
    nouns = [] if is_verb else [name for name in NOUNS if typed in commands_by_verb(name)]
    close = [f"{nouns[0]} {typed}"] if nouns else get_close_matches(typed, candidates, 1)
    hint = f"did you mean `detcloud {prefix}{close[0]}`?" if close else None
    return UsageError(
        f"`detcloud {prefix}{typed}` is not a known command",
        hint or f"see `detcloud {prefix}--help`",
    )


if __name__ == "__main__":
    sys.exit(main())
