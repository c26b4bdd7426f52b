"""Commands on checkpoints."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.experiment import experiment_argument
from detcloud.cli.session import cluster_of, identifier
from detcloud.cli.table import (
    Column,
    add_output_options,
    field,
    print_items,
    print_record,
    time_column,
)
from detcloud.cli.terminal import ByteBar, bytes_text

COLUMNS = (
    field("UUID", "uuid"),
    field("Trial", "trial_id"),
    field("Steps", "steps_completed"),
    field("State", "state"),
    field("Metric", "metric"),
    Column("Size", lambda item: bytes_text(item.get("size_bytes") or 0)),
    field("Files", "files"),
    time_column("Created", "created_ms"),
)
DETAILS = (*COLUMNS, field("Experiment", "experiment_id"), field("Metadata", "metadata"))


def listing_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("--trial", type=identifier, help="only this trial's")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    path = f"/experiments/{arguments.experiment_id}/checkpoints"
    if arguments.trial is not None:
        path = f"/trials/{arguments.trial}/checkpoints"
    print_items(COLUMNS, cluster_of(arguments).items(path), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    _uuid_argument(parser)
    add_output_options(parser, csv=False)


def describe(arguments: Namespace) -> int:
    print_record(DETAILS, cluster_of(arguments).checkpoint(arguments.uuid).data, arguments)
    return 0


def download_arguments(parser: ArgumentParser) -> None:
    _uuid_argument(parser)
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="a folder that does not exist yet; checkpoints/UUID by default",
    )


def download(arguments: Namespace) -> int:
    checkpoint = cluster_of(arguments).checkpoint(arguments.uuid)
    destination = arguments.output_dir or Path("checkpoints") / checkpoint.uuid
    progress = ByteBar(f"checkpoint {checkpoint.uuid[:8]}")
    try:
        checkpoint.download(destination, progress.update)
    finally:
        progress.close()
    print(destination)
    return 0


def _uuid_argument(parser: ArgumentParser) -> None:
    parser.add_argument("uuid", metavar="UUID", help="or any unique beginning of it")
