"""`detcloud checkpoint download` and `upload`: copy checkpoints to and from local folders."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from detcloud.cli.commands.checkpoint_arguments import (
    add_patterns_option,
    add_uuid_argument,
    load_checkpoint,
)
from detcloud.cli.framework.argument_types import parse_count, parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.metadata_values import merge_metadata, parse_metadata_value
from detcloud.cli.framework.options import add_output_dir_option, add_quiet_option
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.columns import CHECKPOINT_DETAILS
from detcloud.cli.rendering.output import add_output_options, print_record
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.client import Checkpoint
from detcloud.shared.errors import DetcloudError

# The modes of `detcloud.client.direct_download`, which imports the checkpoint stores: only a
# download imports that module.
DOWNLOAD_MODES = ("direct", "master", "auto")


def add_download_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `download_checkpoint`: UUID, `--glob` and `--exclude`, stored as the
    lists `patterns` and `excluded`, `--output-dir`, `--quiet` and `--mode`.
    """
    add_uuid_argument(parser)
    add_patterns_option(
        parser,
        "--glob",
        "patterns",
        "only files whose path matches, such as '*.pth', or '**/*.pth' for files in folders too",
    )
    add_patterns_option(parser, "--exclude", "excluded", "exclude files whose path matches")
    add_download_options(parser)
    parser.add_argument(
        "--mode",
        choices=DOWNLOAD_MODES,
        default="master",
        help="master: through URLs that the cluster signs (default); direct: from the "
        "store, with this machine's own credentials; auto: direct if possible, else master",
    )


def add_download_options(parser: ArgumentParser) -> None:
    """Add `-o`/`--output-dir` and `-q`/`--quiet`, for commands that download a single checkpoint.

    They are stored as `output_dir`, by default None for checkpoints/UUID, and `quiet`, by default
    False.
    """
    add_output_dir_option(parser, "checkpoints/UUID")
    add_quiet_option(parser)


def download_checkpoint(arguments: Namespace) -> int:
    """Download the checkpoint of the argument UUID into a new folder, and return 0. Print the
    folder unless `--quiet` is given.

    The default folder is checkpoints/UUID. Only files that match `--glob` and do not match
    `--exclude` are downloaded. `--mode` is the way to the store, by default through URLs from the
    cluster.

    Raises:
        DetcloudError: the folder exists or cannot be written, no file matches, or a file is
            damaged. Or no cluster is available, no checkpoint or several begin with the prefix, or
            a request failed.
    """
    checkpoint = load_checkpoint(arguments)
    patterns, excluded = arguments.patterns, arguments.excluded
    fetch_checkpoint(
        checkpoint,
        arguments.output_dir,
        quiet=arguments.quiet,
        patterns=patterns,
        excluded=excluded,
        mode=arguments.mode,
    )
    return 0


def fetch_checkpoint(
    checkpoint: Checkpoint,
    destination: Path | None,
    *,
    quiet: bool,
    patterns: Sequence[str] = (),
    excluded: Sequence[str] = (),
    mode: str = "master",
) -> None:
    """Download a checkpoint with a progress line on stderr, and print the destination unless
    `quiet`. The files are verified before the folder appears; after an error, no folder remains.

    Args:
        destination: the folder to create; None for `checkpoints/UUID`.
        patterns: download only files whose paths match one of the patterns. Empty for all files.
        excluded: patterns of files to exclude.
        mode: one of DOWNLOAD_MODES: `master` for URLs from the cluster, `direct` for the store with
            this machine's credentials, `auto` for direct if possible.

    Raises:
        DetcloudError: the destination exists or cannot be written, no file matches, a file has a
            wrong size or digest, or the cluster or the store refuses.
    """
    destination = destination or Path("checkpoints") / checkpoint.uuid
    with show_progress(f"checkpoint {checkpoint.uuid[:8]}", bytes_text) as progress:
        checkpoint.download(
            destination, progress.update, patterns=patterns, excluded=excluded, mode=mode
        )
    if not quiet:
        print(destination, flush=True)


def add_upload_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `upload_checkpoint`: the path DIR, either `--trial` or `--experiment`,
    `--steps`, `--metadata` and the output form (`--json`, `--yaml` or `--csv`).

    `--metadata` may be repeated and is a list of results of `parse_metadata_value`.
    """
    parser.add_argument("directory", type=Path, metavar="DIR", help="the folder to upload")
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument(
        "--trial", type=parse_id, metavar="ID", help="the trial of the new checkpoint"
    )
    owner.add_argument(
        "--experiment",
        type=parse_id,
        metavar="ID",
        help="an experiment with a single trial, instead of --trial",
    )
    parser.add_argument(
        "--steps",
        type=parse_count,
        metavar="N",
        help="the number of trained batches (default: that of metadata.json in the folder, or 0)",
    )
    parser.add_argument(
        "--metadata",
        type=parse_metadata_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a metadata value, such as data.version=3, in JSON or plain text; may be repeated",
    )
    add_output_options(parser)


def upload_checkpoint(arguments: Namespace) -> int:
    """Upload a folder as a checkpoint of a trial, print the checkpoint's UUID, and return 0. With
    `--json`, `--yaml` or `--csv`, print the checkpoint's fields.

    If the trial has a checkpoint with this content, print its UUID and upload nothing.
    `--experiment` stands for the only trial of an experiment. `--metadata` values are added to the
    folder's metadata.json, which is not changed. A progress line is drawn on stderr.

    Raises:
        DetcloudError: the experiment of `--experiment` does not have exactly one trial, or the
            folder is missing, is empty or has files that are not allowed. Or no cluster is
            available, or the cluster refuses.
    """
    client = connect(arguments)
    if arguments.trial is not None:
        trial = client.trial(arguments.trial)
    else:
        trials = list(islice(client.experiment(arguments.experiment).trials(), 2))
        if len(trials) != 1:
            count = "several trials" if trials else "no trial"
            text = f"experiment {arguments.experiment} has {count}; name one with --trial"
            raise DetcloudError(text)
        trial = trials[0]
    metadata: dict[str, Any] = {}
    for path, value in arguments.metadata:
        metadata = merge_metadata(metadata, path, value)
    with show_progress(f"{arguments.directory}", bytes_text) as progress:
        checkpoint = trial.upload_checkpoint(
            arguments.directory,
            metadata,
            steps_completed=arguments.steps,
            on_progress=progress.update,
        )
    if arguments.form != "text":
        print_record(CHECKPOINT_DETAILS, checkpoint.data, arguments)
    else:
        print(checkpoint.uuid)
    return 0


HANDLERS: Handlers = {
    "checkpoint download": Handler(add_download_arguments, download_checkpoint),
    "checkpoint upload": Handler(add_upload_arguments, upload_checkpoint),
}
