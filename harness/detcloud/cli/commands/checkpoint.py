"""`detcloud checkpoint`: lists, downloads, uploads, verifies, pins and deletes checkpoints."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from detcloud.cli.framework.argument_types import (
    parse_count,
    parse_id,
    parse_uuid_prefix,
    parse_uuid_prefixes,
)
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.metadata_values import (
    merge_metadata,
    metadata_handler,
    parse_metadata_value,
)
from detcloud.cli.framework.options import (
    add_output_dir_option,
    add_quiet_option,
    add_yes_option,
    confirm,
)
from detcloud.cli.framework.session import add_experiment_argument, connect
from detcloud.cli.rendering.columns import (
    CHECKPOINT_COLUMNS,
    CHECKPOINT_DETAILS,
    CHECKPOINT_LOSSES,
    holders_text,
)
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text, deletion_text
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import Column, field_column
from detcloud.client import Checkpoint, Experiment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.shared.plurals import count_text

# The modes of `detcloud.client.direct_download`, which imports the checkpoint stores: only a
# download imports that module.
DOWNLOAD_MODES = ("direct", "master", "auto")

FILE_COLUMNS = (
    field_column("Path", "path"),
    Column("Size", lambda item: bytes_text(item["size"]), exact=lambda item: item["size"]),
    field_column("SHA-256", "sha256", drop_rank=1),
)
FINDING_COLUMNS = (
    field_column("Path", "path"),
    field_column("State", "state"),
    field_column("Problem", "problem"),
)
UNRECORDED_COLUMNS = (
    field_column("UUID", "uuid"),
    field_column("Trial", "trial_id"),
    field_column("Run", "epoch"),
    field_column("Complete", "is_complete"),
    field_column("Of this cluster", "is_own"),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    add_experiment_argument(parser)
    parser.add_argument("--trial", type=parse_id, help="list only checkpoints of this trial")
    parser.add_argument(
        "--best",
        type=parse_count,
        metavar="N",
        help="list only the best N by the searcher's metric",
    )
    parser.add_argument(
        "--unrecorded",
        action="store_true",
        help="list stored checkpoints that the cluster has no record of",
    )
    add_output_options(parser)


def list_checkpoints(arguments: Namespace) -> int:
    """Print an experiment's checkpoints, limited by the options, and return 0.

    With `--best`, the best come first, and checkpoints without a metric are omitted.

    Raises:
        DetcloudError: the trial of `--trial` belongs to another experiment, `--best` and
            `--unrecorded` were combined, or a request failed.
    """
    client = connect(arguments)
    experiment = client.experiment(arguments.experiment_id)
    if arguments.unrecorded:
        return _list_unrecorded(experiment, arguments)
    if arguments.best is not None:
        checkpoints = experiment.best_checkpoints()
    elif arguments.trial is None:
        checkpoints = list(experiment.checkpoints())
    else:
        checkpoints = list(client.trial(arguments.trial).checkpoints())
    if arguments.trial is not None:
        owner = client.trial(arguments.trial).experiment_id
        if owner != arguments.experiment_id:
            raise DetcloudError(f"trial {arguments.trial} belongs to experiment {owner}")
        checkpoints = [
            checkpoint for checkpoint in checkpoints if checkpoint.trial_id == arguments.trial
        ]
    items = (checkpoint.data for checkpoint in checkpoints[: arguments.best])
    print_items(CHECKPOINT_COLUMNS, items, arguments)
    return 0


def _list_unrecorded(experiment: Experiment, arguments: Namespace) -> int:
    """Print the stored checkpoints without a record, and return 0. With `--trial`, print only
    checkpoints of this trial.

    Raises:
        DetcloudError: `--best` was given.
    """
    if arguments.best is not None:
        raise DetcloudError("--best: checkpoints without a record have no metric")
    found = experiment.unrecorded_checkpoints()
    shown = [
        checkpoint for checkpoint in found if arguments.trial in (None, checkpoint["trial_id"])
    ]
    print_items(UNRECORDED_COLUMNS, [{**checkpoint} for checkpoint in shown], arguments)
    return 0


def add_uuid_argument(parser: ArgumentParser) -> None:
    """Add the argument UUID, which may be a unique prefix, stored as `uuid`."""
    parser.add_argument(
        "uuid", type=parse_uuid_prefix, metavar="UUID", help="a UUID, or a unique prefix of one"
    )


def load_checkpoint(arguments: Namespace) -> Checkpoint:
    """Fetch the checkpoint of `add_uuid_argument` from the configured cluster.

    An unknown or ambiguous prefix raises DetcloudError. `main` closes the client.
    """
    return connect(arguments).checkpoint(arguments.uuid)


def add_describe_arguments(parser: ArgumentParser) -> None:
    add_uuid_argument(parser)
    add_output_options(parser)


def describe_checkpoint(arguments: Namespace) -> int:
    """Print a checkpoint, with fields on damage and deleted files only if set. Return 0."""
    checkpoint = load_checkpoint(arguments)
    losses = [
        checkpoint_loss
        for checkpoint_loss in CHECKPOINT_LOSSES
        if checkpoint_loss.value(checkpoint.data)
    ]
    print_record((*CHECKPOINT_DETAILS, *losses), checkpoint.data, arguments)
    return 0


def list_files(arguments: Namespace) -> int:
    """Print the files of a checkpoint with sizes and digests, and return 0."""
    files = load_checkpoint(arguments).files()
    print_items(FILE_COLUMNS, [{**file} for file in files], arguments)
    return 0


def _add_patterns_option(parser: ArgumentParser, option: str, dest: str, text: str) -> None:
    """Add an option for patterns of file paths, which may be repeated. The default is [].

    Args:
        dest: the attribute of the parsed arguments for the list of patterns.
        text: the beginning of the help.
    """
    parser.add_argument(
        option,
        dest=dest,
        action="append",
        default=[],
        metavar="PATTERN",
        help=f"{text}; may be repeated",
    )


def add_download_options(parser: ArgumentParser) -> None:
    """Add `--output-dir` and `--quiet`, for commands that download a single checkpoint."""
    add_output_dir_option(parser, "checkpoints/UUID")
    add_quiet_option(parser)


def add_download_arguments(parser: ArgumentParser) -> None:
    add_uuid_argument(parser)
    _add_patterns_option(
        parser,
        "--glob",
        "patterns",
        "only files whose path matches, such as '*.pth', or '**/*.pth' for files in folders too",
    )
    _add_patterns_option(parser, "--exclude", "excluded", "exclude files whose path matches")
    add_download_options(parser)
    parser.add_argument(
        "--mode",
        choices=DOWNLOAD_MODES,
        default="master",
        help="master: through URLs that the cluster signs (default); direct: from the "
        "store, with this machine's own credentials; auto: direct if possible, else master",
    )


def download_checkpoint(arguments: Namespace) -> int:
    """Download a checkpoint, limited by the patterns, and return 0. Print the folder unless
    `--quiet` is given.

    The default folder is checkpoints/UUID. An existing folder raises DetcloudError.
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
    """Download a checkpoint with a progress line, and print the destination unless `quiet`.

    Args:
        destination: the folder to create; None for `checkpoints/UUID`.
        patterns: download only files whose paths match one of the patterns. Empty for all files.
        excluded: patterns of files to exclude.
        mode: one of DOWNLOAD_MODES.

    Raises:
        DetcloudError: the destination exists, no file matches, or the download failed.
    """
    destination = destination or Path("checkpoints") / checkpoint.uuid
    with show_progress(f"checkpoint {checkpoint.uuid[:8]}", bytes_text) as progress:
        checkpoint.download(
            destination, progress.update, patterns=patterns, excluded=excluded, mode=mode
        )
    if not quiet:
        print(destination, flush=True)


def add_upload_arguments(parser: ArgumentParser) -> None:
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
    """Upload a folder as a checkpoint of a trial, print the checkpoint's UUID, and return 0.

    If the trial has a checkpoint with this content, print its UUID and upload nothing.

    Raises:
        DetcloudError: the experiment of `--experiment` does not have exactly one trial, or the
            upload failed.
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


def verify_checkpoint(arguments: Namespace) -> int:
    """Verify a checkpoint's stored files, print damaged files or the size, and return 0.

    If the files are intact and the cluster has marked the checkpoint as damaged, remove the mark.

    Raises:
        DetcloudError: a file is damaged, or a request failed.
    """
    checkpoint = load_checkpoint(arguments)
    with show_progress(f"checkpoint {checkpoint.uuid[:8]}", bytes_text) as progress:
        findings = checkpoint.verify(progress.update)
    bad = [finding for finding in findings if finding["state"] != "OK"]
    if arguments.form != "text":
        print_items(FINDING_COLUMNS, [{**finding} for finding in findings], arguments)
    elif bad:
        print_items(FINDING_COLUMNS, [{**finding} for finding in bad], arguments)
    count = count_text(len(findings), "file")
    if bad:
        raise DetcloudError(f"checkpoint {checkpoint.uuid} is damaged: {len(bad)} of {count}")
    if arguments.form == "text":
        print(
            f"checkpoint {checkpoint.uuid} is intact: {count}, {bytes_text(checkpoint.size_bytes)}"
        )
    if checkpoint.state == "DAMAGED":
        text = _clear_damage(checkpoint)
        if arguments.form == "text":
            print(text)
    return 0


def _clear_damage(checkpoint: Checkpoint) -> str:
    """Remove the mark of damage from an intact checkpoint, and return a sentence about the result.
    The state of `checkpoint` is updated.

    If this user may not remove the mark, the sentence says so.

    Raises:
        ApiError: the cluster refused for another reason.
    """
    try:
        checkpoint.clear_damage()
    except ApiError as error:
        if error.code != "forbidden":
            raise
        return f"the checkpoint stays marked as damaged: {error.message}"
    return f"the checkpoint was marked as damaged and is now {checkpoint.state} again"


def add_uuids_argument(parser: ArgumentParser) -> None:
    """Add the argument UUID, which may be repeated, stored as `uuids`."""
    parser.add_argument(
        "uuids",
        type=parse_uuid_prefixes,
        nargs="+",
        metavar="UUID",
        help="UUIDs or unique prefixes, separated by spaces or commas",
    )


def load_checkpoints(arguments: Namespace) -> list[Checkpoint]:
    """Fetch the checkpoints of `add_uuids_argument` in the order of the command line.

    An unknown or ambiguous prefix raises DetcloudError.
    """
    client = connect(arguments)
    return [client.checkpoint(prefix) for part in arguments.uuids for prefix in part]


def pin_checkpoints(arguments: Namespace) -> int:
    for checkpoint in load_checkpoints(arguments):
        pin = checkpoint.pin()
        print(f"checkpoint {checkpoint.uuid} is pinned by {', '.join(pin['users'])}")
    return 0


def unpin_checkpoints(arguments: Namespace) -> int:
    for checkpoint in load_checkpoints(arguments):
        holders = holders_text(checkpoint.unpin())
        text = f"is still kept by {holders}" if holders else "is not pinned"
        print(f"checkpoint {checkpoint.uuid} {text}")
    return 0


def add_delete_arguments(parser: ArgumentParser) -> None:
    add_uuids_argument(parser)
    add_yes_option(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only show how many files would be deleted, and how long it takes",
    )
    _add_patterns_option(
        parser,
        "--glob",
        "patterns",
        "delete only files whose path matches, such as 'optimizer/**'; the remaining files can be "
        "downloaded, but no trial can start from the checkpoint",
    )


def delete_checkpoints(arguments: Namespace) -> int:
    """Delete checkpoints, or the files that match `--glob`, after confirmation. Print the new state
    of each checkpoint, and return 0.

    Return 1 if the user declined. With `--dry-run`, delete nothing and return the code of
    `_preview_deletions`. If a deletion fails, earlier deletions remain.
    """
    checkpoints = load_checkpoints(arguments)
    patterns = arguments.patterns
    if arguments.dry_run:
        return _preview_deletions(checkpoints, patterns)
    if not confirm(_deletion_question(checkpoints, patterns), arguments):
        print("nothing was deleted")
        return 1
    with show_progress("deleting", lambda n: count_text(n, "checkpoint")) as progress:
        for number, checkpoint in enumerate(checkpoints, 1):
            checkpoint.delete(patterns)
            progress.update(number, len(checkpoints))
    for checkpoint in checkpoints:
        print(state_sentence(f"checkpoint {checkpoint.uuid}", checkpoint.state))
    return 0


def _deletion_question(checkpoints: list[Checkpoint], patterns: list[str]) -> str:
    """Return the question to confirm, with the number and the size of the checkpoints or files.

    With patterns, the cluster computes the number of files.
    """
    if not patterns:
        size = bytes_text(sum(checkpoint.size_bytes for checkpoint in checkpoints))
        return f"Delete {count_text(len(checkpoints), 'checkpoint')}, {size}?"
    previews = [checkpoint.preview_deletion(patterns) for checkpoint in checkpoints]
    files = count_text(sum(preview["delete_files"] for preview in previews), "file")
    size = bytes_text(sum(preview["delete_bytes"] for preview in previews))
    return f"Delete {files} of {count_text(len(checkpoints), 'checkpoint')}, {size}?"


def _preview_deletions(checkpoints: list[Checkpoint], patterns: list[str]) -> int:
    """Print the size of the deletion, and each checkpoint that cannot be deleted with the reason.
    Nothing is deleted.

    Return 1 if a checkpoint cannot be deleted, otherwise 0.
    """
    previews = [checkpoint.preview_deletion(patterns) for checkpoint in checkpoints]
    doomed = [preview for preview in previews if preview["delete_files"] and not preview["problem"]]
    files = sum(preview["delete_files"] for preview in doomed)
    size = sum(preview["delete_bytes"] for preview in doomed)
    seconds = sum(preview["delete_seconds"] for preview in doomed)
    print(f"to delete: {deletion_text(len(doomed), files, size, seconds)}")
    refused = [preview for preview in previews if preview["problem"]]
    for preview in refused:
        print(f"checkpoint {preview['uuid']} cannot be deleted: {preview['problem']}")
    return int(bool(refused))


HANDLERS: Handlers = {
    "checkpoint list": Handler(add_list_arguments, list_checkpoints),
    "experiment list-checkpoints": Handler(add_list_arguments, list_checkpoints),
    "checkpoint describe": Handler(add_describe_arguments, describe_checkpoint),
    "checkpoint files": Handler(add_describe_arguments, list_files),
    "checkpoint download": Handler(add_download_arguments, download_checkpoint),
    "checkpoint upload": Handler(add_upload_arguments, upload_checkpoint),
    "checkpoint verify": Handler(add_describe_arguments, verify_checkpoint),
    "checkpoint set metadata": metadata_handler(
        "checkpoint", "uuid", add_uuid_argument, load_checkpoint
    ),
    "checkpoint pin": Handler(add_uuids_argument, pin_checkpoints),
    "checkpoint unpin": Handler(add_uuids_argument, unpin_checkpoints),
    "checkpoint delete": Handler(add_delete_arguments, delete_checkpoints),
}
