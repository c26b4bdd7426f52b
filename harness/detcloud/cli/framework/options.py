"""Options that several commands share, and what obeys them."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeVar

from detcloud.cli.framework.argument_types import parse_count, parse_override
from detcloud.cli.framework.deployable_clouds import CLOUDS
from detcloud.shared.errors import DetcloudError

T = TypeVar("T")


def add_paging_options(parser: ArgumentParser, limit: int | None, order: str = "first") -> None:
    """Add `--limit`, `--offset` and `--pages`, for `fetch_limit` and `skip_offset`."""
    standard = "all" if limit is None else limit
    parser.add_argument(
        "--limit",
        type=parse_count,
        default=limit,
        metavar="N",
        help=f"show only the {order} (default: {standard})",
    )
    parser.add_argument(
        "--offset",
        type=parse_count,
        default=0,
        metavar="N",
        help="skip this many (default: 0)",
    )
    parser.add_argument("--pages", choices=("1", "all"), help="all: no limit")


def fetch_limit(arguments: Namespace) -> int | None:
    """How many items the paging options need to be fetched; None for all."""
    if arguments.pages == "all" or arguments.limit is None:
        return None
    return int(arguments.limit + arguments.offset)


def skip_offset(items: Iterable[T], arguments: Namespace) -> Iterator[T]:
    """Leave out the first `--offset` of the items that were fetched."""
    return islice(items, arguments.offset, None)


def add_cloud_option(parser: ArgumentParser) -> None:
    """Add `--cloud`, for what was deployed or will be; it is shown where there is a choice."""
    names = [cloud.name for cloud in CLOUDS]
    summary = f"where the cluster is deployed (default: {names[0]})"
    parser.add_argument(
        "--cloud",
        choices=names,
        default=names[0],
        help=summary if len(names) > 1 else SUPPRESS,
    )


def add_output_dir_option(parser: ArgumentParser, standard: str) -> None:
    """Add `-o`/`--output-dir`, which names a folder that does not exist yet."""
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"a new folder (default: {standard})",
    )


def add_quiet_option(parser: ArgumentParser) -> None:
    """Add `-q`/`--quiet`, for commands that print only where they put something."""
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")


def add_yes_option(parser: ArgumentParser) -> None:
    """Add `--yes`, for `confirm`."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def confirm(question: str, arguments: Namespace) -> bool:
    """Ask on the terminal and return the user's answer; `--yes` agrees beforehand.

    Raises:
        DetcloudError: there is nobody to ask.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise DetcloudError(
            f"{question.removesuffix('?')}: confirm with --yes, since there is no terminal"
        )
    # On stderr: stdout may be a file that takes the answer.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_replaced_option(parser: ArgumentParser, *flags: str, instead: str) -> None:
    """Accept an option of the original command only to say what there is in its place."""

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
    """Add `--metadata KEY=VALUE`, which finds what has a value in its metadata."""
    parser.add_argument(
        "--metadata",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only those with this value in their metadata, such as data.version=3; may be "
        "repeated",
    )


def add_overrides_option(parser: ArgumentParser, *, example: str = "searcher.max_trials=8") -> None:
    """Add `--config KEY=VALUE`, which sets fields of a configuration file."""
    parser.add_argument(
        "--config",
        dest="overrides",
        type=parse_override,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"set a field, such as {example}; may be repeated",
    )


def add_include_option(parser: ArgumentParser) -> None:
    """Add `-i`/`--include`, for commands that send files to the cluster."""
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
    """Add `--follow` and `--follow-first-trial`, for commands that start training."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--follow", action="store_true", help="watch the experiment until it ends")
    which.add_argument(
        "-f",
        "--follow-first-trial",
        action="store_true",
        help="print the log of the first trial as it grows",
    )
