"""Options that several commands share, and functions that apply them."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeVar

from detcloud.cli.framework.argument_types import parse_count, parse_override
from detcloud.cli.framework.deployable_clouds import CLOUDS
from detcloud.shared.errors import DetcloudError

T = TypeVar("T")


def add_paging_options(parser: ArgumentParser, limit: int | None, order: str = "first") -> None:
    """Add `--limit`, `--offset` and `--pages`, which `fetch_limit` and `skip_offset` apply. Limit
    and offset are counts from 0.

    `--offset` is 0 by default, and `--pages` is None. `--pages all` removes the limit; `--pages 1`
    changes nothing.

    Args:
        limit: the default of `--limit`; None for no limit.
        order: the word for the listed items in the help, such as `newest`.
    """
    standard = "all" if limit is None else limit
    parser.add_argument(
        "--limit",
        type=parse_count,
        default=limit,
        metavar="N",
        help=f"show only the {order} N (default: {standard})",
    )
    parser.add_argument(
        "--offset",
        type=parse_count,
        default=0,
        metavar="N",
        help="skip the first N (default: 0)",
    )
    parser.add_argument(
        "--pages", choices=("1", "all"), help="`all` removes the limit; 1 keeps the limit"
    )


def fetch_limit(arguments: Namespace) -> int | None:
    """Return the number of items to fetch before `skip_offset`: `--limit` plus `--offset`.

    Return None, for all items, with `--pages all` or without a limit.
    """
    if arguments.pages == "all" or arguments.limit is None:
        return None
    return int(arguments.limit + arguments.offset)


def skip_offset(items: Iterable[T], arguments: Namespace) -> Iterator[T]:
    """Yield the items after the first `--offset` items. Shorter lists yield no items.

    The items are read only as needed.
    """
    return islice(items, arguments.offset, None)


def split_states(text: str | None) -> Sequence[str]:
    """Return the states of a list separated by commas. Return () without a list.

    The cluster checks the names.
    """
    return text.split(",") if text else ()


def add_cloud_option(parser: ArgumentParser) -> None:
    """Add `--cloud` with the names of CLOUDS, stored as `cloud`. The default is the first cloud of
    CLOUDS.

    Another name is a usage error. The help shows the option only if CLOUDS has several clouds.
    """
    names = [cloud.name for cloud in CLOUDS]
    summary = f"the cloud of the cluster (default: {names[0]})"
    parser.add_argument(
        "--cloud",
        choices=names,
        default=names[0],
        help=summary if len(names) > 1 else SUPPRESS,
    )


def add_output_dir_option(parser: ArgumentParser, standard: str) -> None:
    """Add `-o`/`--output-dir`, the path of a folder to create, stored as `output_dir`. The default
    value is None.

    Args:
        standard: the default folder that the help shows. The command itself must replace None by
            the folder.
    """
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"a new folder (default: {standard})",
    )


def add_quiet_option(parser: ArgumentParser) -> None:
    """Add `-q`/`--quiet`, False by default, for commands that otherwise print the path of the
    output.
    """
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")


def add_yes_option(parser: ArgumentParser) -> None:
    """Add `--yes`/`-y`, False by default, which `confirm` reads."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def confirm(question: str, arguments: Namespace) -> bool:
    """Print a question on stderr, read a line from stdin, and return whether the line is y or yes.

    Upper and lower case are accepted. All other lines, an empty line and the end of the input are a
    no. The wait for the line has no limit. With `--yes`, return True without a question.

    Args:
        question: a question with a question mark, without the choices.
        arguments: the options of `add_yes_option`.

    Raises:
        DetcloudError: stdin is not a terminal, and `--yes` was not given.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise DetcloudError(
            f"{question.removesuffix('?')}: confirm with --yes, since stdin is not a terminal"
        )
    # On stderr, because stdout may be a file for the output of the command.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_replaced_option(parser: ArgumentParser, *flags: str, instead: str) -> None:
    """Add a hidden option of Determined's command line that detcloud does not support.

    The option, with or without a value, ends the command: an error and a hint are printed to
    stderr, and the parser raises SystemExit with code 2.

    Args:
        flags: the spellings of the option.
        instead: the replacement, which the error shows after the option's name.
    """

    class RejectOption(Action):
        def __call__(
            self,
            parser: ArgumentParser,
            namespace: Namespace,
            values: object,
            option_string: str | None = None,
        ) -> NoReturn:
            parser.error(f"{option_string} is not supported: {instead}")

    parser.add_argument(*flags, action=RejectOption, nargs="?", help=SUPPRESS)


def add_metadata_option(parser: ArgumentParser) -> None:
    """Add `--metadata KEY=VALUE`, a filter of lists by metadata, which may be repeated.

    The texts are stored as the list `metadata`, empty by default. The parser does not check the
    form KEY=VALUE.
    """
    parser.add_argument(
        "--metadata",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="list only items with this metadata value, such as data.version=3; may be repeated",
    )


def add_overrides_option(parser: ArgumentParser, *, example: str = "searcher.max_trials=8") -> None:
    """Add `--config KEY=VALUE`, which sets fields of a configuration and may be repeated.

    The texts are stored as the list `overrides`, empty by default. A text without a key or `=` is a
    usage error.

    Args:
        example: the override that the help shows.
    """
    parser.add_argument(
        "--config",
        dest="overrides",
        type=parse_override,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"set a field of the configuration, such as {example}; may be repeated",
    )


def add_include_option(parser: ArgumentParser) -> None:
    """Add `-i`/`--include PATH`, which may be repeated, for commands that upload files.

    The paths are stored as the list `includes`, empty by default. The parser does not check that a
    path exists.
    """
    parser.add_argument(
        "-i",
        "--include",
        dest="includes",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="also send this file or folder; may be repeated",
    )


def add_follow_options(parser: ArgumentParser) -> None:
    """Add `--follow` and `-f`/`--follow-first-trial`, which exclude each other. Both are False by
    default. `print_or_follow` reads the options.
    """
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--follow", action="store_true", help="watch the experiment until it ends")
    which.add_argument(
        "-f",
        "--follow-first-trial",
        action="store_true",
        help="print the log of the first trial as it grows",
    )
