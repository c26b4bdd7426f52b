"""`detcloud report`: lists, prints and writes reports. Only the web page draws their charts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.framework.usage_error import UsageError
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_note,
    print_record,
)
from detcloud.cli.rendering.table import field_column, time_column
from detcloud.cli.rendering.terminal import sanitize
from detcloud.shared.errors import DetcloudError

SHARINGS = ("private", "read", "edit")
TEXT_BYTES_MAX = 64 * 1024
COLUMNS = (
    field_column("Id", "id"),
    field_column("Title", "title"),
    field_column("Owner", "user"),
    field_column("Sharing", "sharing", drop_rank=2),
    field_column("Revision", "revision", drop_rank=1),
    time_column("Updated", "updated_ms", drop_rank=3),
    field_column("Updated by", "updated_by", drop_rank=1),
)
DETAILS = (*COLUMNS, time_column("Created", "created_ms"), field_column("Text", "text"))


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the output form of `list_reports`: `--json`, `--yaml` or `--csv`."""
    add_output_options(parser)


def list_reports(arguments: Namespace) -> int:
    """Print your reports and the shared reports of other users, newest first, without the texts.
    Return 0. Without reports, print only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    print_items(COLUMNS, (report.data for report in connect(arguments).reports()), arguments)
    return 0


def add_show_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_report`: ID, and `--json`, `--yaml` or `--csv`."""
    _add_id_argument(parser)
    add_output_options(parser)


def show_report(arguments: Namespace) -> int:
    """Print the Markdown of a report, or all fields with `--json`, `--yaml` or `--csv`. Return 0.

    Charts are printed as their blocks of text. In the Markdown, control characters are replaced,
    and a note on stderr has the revision for `report edit`.

    Raises:
        DetcloudError: no cluster is available, the report does not exist or is not shared, or the
            request failed.
    """
    report = connect(arguments).report(arguments.id)
    if arguments.form != "text":
        print_record(DETAILS, report.data, arguments)
        return 0
    for line in report.text.removesuffix("\n").split("\n"):
        print(sanitize(line.removesuffix("\r")))
    sys.stdout.flush()
    print_note(
        f"this is revision {report.revision}; `detcloud report edit {report.id} FILE --revision "
        f"{report.revision}` replaces the text"
    )
    return 0


def add_create_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `create_report`: TITLE, FILE and `--sharing`, `private` by default."""
    parser.add_argument("title", metavar="TITLE", help="1 to 200 printable characters")
    _add_file_argument(parser)
    _add_sharing_option(parser, "private")


def create_report(arguments: Namespace) -> int:
    """Create a report with the Markdown of FILE, or without a text, print its id, and return 0.

    Raises:
        DetcloudError: the file cannot be read, no cluster is available, or the cluster refuses.
    """
    text = "" if arguments.file is None else _read_text(arguments.file)
    report = connect(arguments).create_report(arguments.title, text, sharing=arguments.sharing)
    print(f"report {report.id} was created")
    return 0


def add_edit_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `edit_report`: ID, FILE, `--revision`, `--title` and `--sharing`."""
    _add_id_argument(parser)
    _add_file_argument(parser)
    parser.add_argument(
        "--revision",
        type=parse_id,
        metavar="N",
        help="the revision that FILE was made from; `report show` prints the revision",
    )
    parser.add_argument("--title", metavar="TEXT", help="a new title")
    _add_sharing_option(parser, None)


def edit_report(arguments: Namespace) -> int:
    """Replace the text, the title or the sharing of a report, print the new revision, and return 0.

    Raises:
        UsageError: nothing to change is given, or FILE without `--revision`.
        DetcloudError: the file cannot be read, no cluster is available, or the cluster refuses, for
            example because another user changed the report after `--revision`.
    """
    changes = (arguments.file, arguments.title, arguments.sharing)
    if all(change is None for change in changes):
        raise UsageError(
            "nothing to change: expected FILE, --title or --sharing",
            f"`detcloud report show {arguments.id} > report.md` prints the present text",
        )
    if arguments.file is not None and arguments.revision is None:
        raise UsageError(
            "FILE needs --revision, the revision that the file was made from",
            f"`detcloud report show {arguments.id}` prints the revision; a newer text of another "
            "user is then not replaced unseen",
        )
    text = None if arguments.file is None else _read_text(arguments.file)
    report = connect(arguments).report(arguments.id)
    report.set(
        text=text, title=arguments.title, sharing=arguments.sharing, revision=arguments.revision
    )
    print(f"report {report.id} has revision {report.revision}")
    return 0


def delete_report(arguments: Namespace) -> int:
    """Delete a report from the cluster, print a confirmation, and return 0. The user is not asked.

    Raises:
        DetcloudError: no cluster is available, the report does not exist or is not shared, or the
            cluster refuses the request.
    """
    report = connect(arguments).report(arguments.id)
    report.delete()
    print(f"report {report.id} was deleted")
    return 0


def _add_id_argument(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=parse_id, help="the report's id")


def _add_file_argument(parser: ArgumentParser) -> None:
    text = "a file with the Markdown, at most 64 KiB; `-` for the standard input"
    parser.add_argument("file", nargs="?", metavar="FILE", help=text)


def _add_sharing_option(parser: ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--sharing",
        choices=SHARINGS,
        default=default,
        help="`private`; `read`, for all users to read; `edit`, for all users to change, too",
    )


def _read_text(file: str) -> str:
    """Return the text of a file, or of the standard input for `-`.

    Raises:
        DetcloudError: the file cannot be read, exceeds TEXT_BYTES_MAX or is not UTF-8.
    """
    try:
        if file == "-":
            data = sys.stdin.buffer.read(TEXT_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise DetcloudError(f"{file} could not be read: {error.strerror}") from None
    if len(data) > TEXT_BYTES_MAX:
        raise DetcloudError(
            f"{file} has more than {TEXT_BYTES_MAX} bytes, the most of a report: shorten the text"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DetcloudError(f"{file} is not UTF-8: byte {error.start} is invalid") from None


HANDLERS: Handlers = {
    "report list": Handler(add_list_arguments, list_reports),
    "report show": Handler(add_show_arguments, show_report),
    "report create": Handler(add_create_arguments, create_report),
    "report edit": Handler(add_edit_arguments, edit_report),
    "report delete": Handler(_add_id_argument, delete_report),
}
