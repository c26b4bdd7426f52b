"""The options that all commands which start a server share."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

from detcloud.shared.bucket_address import parse_bucket_address


def add_place_options(parser: ArgumentParser) -> None:
    """Add `--files`, `--files-credentials` and `--clouds`, which are None by default.

    Paths are absolute. `--files` may be the address of a bucket, and `--clouds` may be `none`.
    """
    parser.add_argument(
        "--files",
        type=_parse_files,
        metavar="PLACE",
        help="the place of model code, logs and checkpoints, which all servers with a common "
        "database share: a folder, or for model code and logs a bucket "
        "s3://BUCKET/PREFIX?endpoint_url=URL (default: the present place, at first the data "
        "folder)",
    )
    parser.add_argument(
        "--files-credentials",
        type=_parse_path,
        metavar="FILE",
        help="a file in the form of AWS's credentials files, readable by the server only, with the "
        "keys for the bucket of --files (default: the credentials of the server's environment)",
    )
    parser.add_argument(
        "--clouds",
        type=_parse_clouds,
        metavar="FILE",
        help="a file that names an account on AWS or a project on Google Cloud for pools with "
        "machines in this cloud; `none` removes the accounts (default: the present accounts)",
    )


def _parse_path(text: str) -> Path:
    return Path(text).absolute()


def _parse_files(text: str) -> str:
    """Return a checked address of a bucket, or an absolute path."""
    if not text:
        raise ArgumentTypeError("must not be empty")
    if "://" not in text:
        return str(_parse_path(text))
    try:
        parse_bucket_address(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _parse_clouds(text: str) -> str:
    return text if text == "none" else str(_parse_path(text))
