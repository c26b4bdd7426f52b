"""Commands on checkpoints."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from detcloud import DetcloudError
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
    field("State", "state", spare=2),
    field("Metric", "metric"),
    Column("Size", lambda item: bytes_text(item.get("size_bytes") or 0)),
    field("Files", "files", spare=1),
    time_column("Created", "created_ms", spare=3),
)
DETAILS = (*COLUMNS, field("Experiment", "experiment_id"), field("Metadata", "metadata"))
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF-")


def listing_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("--trial", type=identifier, help="only this trial's")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    cluster = cluster_of(arguments)
    path = f"/experiments/{arguments.experiment_id}/checkpoints"
    if arguments.trial is not None:
        path = f"/trials/{arguments.trial}/checkpoints"
        experiment_id = cluster.trial(arguments.trial).data["experiment_id"]
        if experiment_id != arguments.experiment_id:
            raise DetcloudError(f"trial {arguments.trial} is one of experiment {experiment_id}")
    print_items(COLUMNS, cluster.items(path), arguments)
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
    parser.add_argument("uuid", type=_uuid, metavar="UUID", help="or any unique beginning of it")


def _uuid(text: str) -> str:
    if not text or not _HEXADECIMAL.issuperset(text):
        raise ArgumentTypeError(f"{text!r} is no UUID or beginning of one")
    return text
