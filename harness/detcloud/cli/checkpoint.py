"""Commands on checkpoints."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.experiment import experiment_argument
from detcloud.cli.options import (
    add_directory_option,
    add_quiet_option,
    add_yes_option,
    confirmed,
    count,
    foreign_option,
    identifier,
    uuid_prefix,
    uuid_prefixes,
)
from detcloud.cli.output import add_output_options, print_items, print_record
from detcloud.cli.progress import progress
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, field, time_column
from detcloud.cli.terminal import bytes_text, counted
from detcloud.client import Checkpoint

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


def listing_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("--trial", type=identifier, help="only this trial's")
    parser.add_argument(
        "--best", type=count, metavar="N", help="only so many, by the searcher's metric"
    )
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    client = client_of(arguments)
    experiment = client.experiment(arguments.experiment_id)
    if arguments.best is not None:
        found = experiment.best_checkpoints()
    elif arguments.trial is None:
        found = list(experiment.checkpoints())
    else:
        found = list(client.trial(arguments.trial).checkpoints())
    if arguments.trial is not None:
        owner = client.trial(arguments.trial).experiment_id
        if owner != arguments.experiment_id:
            raise DetcloudError(f"trial {arguments.trial} is one of experiment {owner}")
        found = [checkpoint for checkpoint in found if checkpoint.trial_id == arguments.trial]
    print_items(COLUMNS, (checkpoint.data for checkpoint in found[: arguments.best]), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    _uuid_argument(parser)
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    print_record(DETAILS, client_of(arguments).checkpoint(arguments.uuid).data, arguments)
    return 0


def files_arguments(parser: ArgumentParser) -> None:
    _uuid_argument(parser)
    add_output_options(parser)


def files(arguments: Namespace) -> int:
    columns = (
        field("Path", "path"),
        Column("Size", lambda item: bytes_text(item["size"])),
        field("SHA-256", "sha256", spare=1),
    )
    found = client_of(arguments).checkpoint(arguments.uuid).files()
    print_items(columns, [{**file} for file in found], arguments)
    return 0


def download_arguments(parser: ArgumentParser) -> None:
    _uuid_argument(parser)
    download_options(parser)
    foreign_option(parser, "--mode", instead="files always come from the store itself")


def download(arguments: Namespace) -> int:
    checkpoint = client_of(arguments).checkpoint(arguments.uuid)
    fetch(checkpoint, arguments.output_dir, quiet=arguments.quiet)
    return 0


def download_options(parser: ArgumentParser) -> None:
    """Where to, and how loud, of every command that fetches one checkpoint."""
    add_directory_option(parser, "checkpoints/UUID")
    add_quiet_option(parser)


def fetch(checkpoint: Checkpoint, destination: Path | None, *, quiet: bool) -> None:
    """Downloads to `destination`, or `checkpoints/UUID`, and prints where that is."""
    destination = destination or Path("checkpoints") / checkpoint.uuid
    with progress(f"checkpoint {checkpoint.uuid[:8]}", bytes_text) as shown:
        checkpoint.download(destination, shown.update)
    if not quiet:
        print(destination, flush=True)


def delete_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "uuids",
        type=uuid_prefixes,
        nargs="+",
        metavar="UUID",
        help="or unique beginnings, with spaces or commas between them",
    )
    add_yes_option(parser)
    foreign_option(parser, "--glob", instead="a checkpoint is deleted whole")


def delete(arguments: Namespace) -> int:
    client = client_of(arguments)
    found = [client.checkpoint(prefix) for part in arguments.uuids for prefix in part]
    size = bytes_text(sum(checkpoint.size_bytes for checkpoint in found))
    if not confirmed(f"Delete {counted(len(found), 'checkpoint')}, {size}?", arguments):
        print("nothing was deleted")
        return 1
    with progress("deleting", lambda n: counted(n, "checkpoint")) as shown:
        for place, checkpoint in enumerate(found):
            checkpoint.delete()
            shown.update(place + 1, len(found))
    for checkpoint in found:
        print(f"checkpoint {checkpoint.uuid} is {checkpoint.state}")
    return 0


def _uuid_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "uuid", type=uuid_prefix, metavar="UUID", help="or any unique beginning of it"
    )
