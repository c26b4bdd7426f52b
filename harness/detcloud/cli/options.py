"""Options and types of arguments that several commands share."""

from __future__ import annotations

import re
import sys
import time
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeVar

from detcloud import DetcloudError

DIGITS_MAX = 12
ID_MAX = 10**DIGITS_MAX - 1
_AGO = re.compile(r"(\d{1,9})([smhd])")
_AGO_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF-")

T = TypeVar("T")


def identifier(text: str) -> int:
    """Type of an experiment's or trial's id on the command line."""
    if not _is_whole(text) or not 0 < int(text) <= ID_MAX:
        raise ArgumentTypeError(f"{text!r} is no id; expected a whole number such as 12")
    return int(text)


def identifiers(text: str) -> list[int]:
    """Type of ids with commas between them."""
    return [identifier(part) for part in text.split(",")]


def count(text: str) -> int:
    """Type of a number of things on the command line: 0 or more."""
    if not _is_whole(text):
        raise ArgumentTypeError(f"{text!r} is no count; expected a whole number such as 12")
    return int(text)


def seconds(text: str) -> float:
    """Type of a duration on the command line: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"{text!r} is no duration; expected seconds above 0")
    return value


def moment_ms(text: str) -> int:
    """Type of a moment: ISO 8601, UTC where it names no zone, or how long ago, such as `90m`."""
    if ago := _AGO.fullmatch(text):
        passed = timedelta(**{_AGO_UNITS[ago[2]]: int(ago[1])})
        return int((time.time() - passed.total_seconds()) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no moment; expected such as 2026-01-31T12:00:00 or 90m, 12h, 3d ago"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def truth(text: str) -> bool:
    """Type of a yes or no on the command line."""
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def uuid_prefix(text: str) -> str:
    """Type of a checkpoint's UUID or the beginning of one."""
    if not text or not _HEXADECIMAL.issuperset(text):
        raise ArgumentTypeError(f"{text!r} is no UUID or beginning of one")
    return text


def uuid_prefixes(text: str) -> list[str]:
    """Type of UUIDs with commas between them."""
    return [uuid_prefix(part) for part in text.split(",")]


def add_paging_options(parser: ArgumentParser, limit: int | None, order: str = "first") -> None:
    """Adds `--limit`, `--offset` and `--pages`; `paged` obeys them."""
    standard = "all" if limit is None else limit
    parser.add_argument(
        "--limit",
        type=count,
        default=limit,
        metavar="N",
        help=f"only the {order} (default: {standard})",
    )
    parser.add_argument(
        "--offset", type=count, default=0, metavar="N", help="leave out so many before (default: 0)"
    )
    parser.add_argument("--pages", choices=("1", "all"), help="all: no limit")


def fetched_max(arguments: Namespace) -> int | None:
    """How many items have to be fetched for what the paging options ask for; None for all."""
    if arguments.pages == "all" or arguments.limit is None:
        return None
    return int(arguments.limit + arguments.offset)


def paged(items: Iterable[T], arguments: Namespace) -> Iterator[T]:
    """Leaves out the first `--offset` of what was fetched."""
    return islice(items, arguments.offset, None)


def add_directory_option(parser: ArgumentParser, standard: str) -> None:
    """Adds `-o`/`--output-dir`, which names a folder that does not exist yet."""
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help=f"a folder that does not exist yet; {standard} by default",
    )


def add_quiet_option(parser: ArgumentParser) -> None:
    """Adds `-q`/`--quiet`, for commands whose only line is where something was put."""
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing when it works")


def add_yes_option(parser: ArgumentParser) -> None:
    """Adds `--yes`, which `confirmed` reads."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def confirmed(question: str, arguments: Namespace) -> bool:
    """Whether the user agrees; `--yes` agrees beforehand.

    Raises:
        DetcloudError: there is nobody to ask.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise DetcloudError(f"{question.removesuffix('?')}: without a terminal it needs --yes")
    # On stderr: stdout may be a file that takes the answer.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def foreign_option(parser: ArgumentParser, *flags: str, instead: str) -> None:
    """Accepts a flag of the original command to say what there is in its place."""

    class Foreign(Action):
        def __call__(
            self,
            parser: ArgumentParser,
            namespace: Namespace,
            values: object,
            option_string: str | None = None,
        ) -> NoReturn:
            parser.error(f"{option_string} has no meaning here: {instead}")

    parser.add_argument(*flags, action=Foreign, nargs="?", help=SUPPRESS)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
