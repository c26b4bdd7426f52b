"""The entry point: help and version at once, every other command through the dispatcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from detcloud.cli.framework.command_index import NOUN_ALIASES, NOUNS
from detcloud.cli.framework.exit_codes import INTERRUPTED, OK, USAGE
from detcloud.cli.framework.overview import render_noun_overview, render_overview
from detcloud.cli.framework.usage_error import UsageError, report_usage_error
from detcloud.shared.version import __version__

# The functions below import what `--version` and `--help` do not need, as bench/commands.py
# measures them (docs/benchmarks.md); modules of commands are imported when their command runs.


def main(argv: Sequence[str] | None = None) -> int:
    """Run `detcloud ARGV` and return one of `exit_codes.EXIT_CODES`."""
    _open_closed_streams()
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


def _open_closed_streams() -> None:
    """Give a command that was started with `>&-` somewhere to write, as with `>/dev/null`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


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
    from detcloud.cli.framework.dispatch import run_command

    return run_command(words, url)


def _split_leading_url(words: list[str]) -> tuple[str | None, list[str]]:
    """Take `--url URL` or `--url=URL` from the front of the words."""
    if words and words[0].startswith("--url="):
        return words[0].removeprefix("--url="), words[1:]
    if words and words[0] == "--url":
        if len(words) == 1:
            raise UsageError("--url needs an address", "such as --url http://127.0.0.1:8080")
        return words[1], words[2:]
    return None, words


if __name__ == "__main__":
    sys.exit(main())
