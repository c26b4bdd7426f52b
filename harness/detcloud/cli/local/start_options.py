"""The options that all commands which start a server share."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path


def add_place_options(parser: ArgumentParser) -> None:
    """Add `--files`, an absolute path, and `--clouds`, an absolute path or `none`.

    Both are None by default.
    """
    parser.add_argument(
        "--files",
        type=_parse_path,
        metavar="FOLDER",
        help="the folder of model code, logs and checkpoints, which all servers with a common "
        "database share (default: the present folder, at first the data folder)",
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


def _parse_clouds(text: str) -> str:
    return text if text == "none" else str(_parse_path(text))
