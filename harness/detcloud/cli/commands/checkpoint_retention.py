"""`detcloud checkpoint pin`, `unpin` and `delete`: which checkpoints the cluster keeps."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.checkpoint_arguments import (
    add_patterns_option,
    add_uuids_argument,
    load_checkpoints,
)
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.rendering.columns import holders_text
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text, deletion_text
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.client import Checkpoint
from detcloud.shared.plurals import count_text


def pin_checkpoints(arguments: Namespace) -> int:
    """Pin each checkpoint for this user, print a line with the users who have pinned the
    checkpoint, and return 0. A pinned checkpoint is neither collected nor deleted.

    All checkpoints are fetched before the first is pinned. If the cluster refuses a pin, earlier
    pins remain.

    Raises:
        DetcloudError: no cluster is available, no checkpoint or several begin with a prefix, a
            checkpoint is deleted, or another request failed.
    """
    for checkpoint in load_checkpoints(arguments):
        pin = checkpoint.pin()
        print(f"checkpoint {checkpoint.uuid} is pinned by {', '.join(pin['users'])}")
    return 0


def unpin_checkpoints(arguments: Namespace) -> int:
    """Remove this user's pin of each checkpoint, or all users' pins if the user is an
    administrator. Return 0.

    A line for each checkpoint names the users, model versions and experiments that still keep the
    checkpoint, or says `is not pinned`. If the cluster refuses, earlier pins stay removed.

    Raises:
        DetcloudError: only other users have pinned a checkpoint, no cluster is available, no
            checkpoint or several begin with a prefix, or another request failed.
    """
    for checkpoint in load_checkpoints(arguments):
        holders = holders_text(checkpoint.unpin())
        text = f"is still kept by {holders}" if holders else "is not pinned"
        print(f"checkpoint {checkpoint.uuid} {text}")
    return 0


def add_delete_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `delete_checkpoints`: UUIDs, `--yes`, `--dry-run` and `--glob`, stored
    as the list `patterns`.
    """
    add_uuids_argument(parser)
    add_yes_option(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only show how many files would be deleted, and how long it takes",
    )
    add_patterns_option(
        parser,
        "--glob",
        "patterns",
        "delete only files whose path matches, such as 'optimizer/**'; the remaining files can be "
        "downloaded, but no trial can start from the checkpoint",
    )


def delete_checkpoints(arguments: Namespace) -> int:
    """Delete checkpoints, or only the files that match a pattern of `--glob`, after confirmation.
    Print the new state of each checkpoint, and return 0.

    The cluster deletes the files later. Return 1 if the user declined, after printing `nothing was
    deleted`. With `--dry-run`, delete nothing and return the code of `_preview_deletions`. If a
    deletion fails, earlier deletions remain and no state is printed.

    Raises:
        DetcloudError: the cluster refuses, for example for a pinned checkpoint, or no checkpoint or
            several begin with a prefix. Or no cluster is available, or stdin is not a terminal and
            `--yes` is missing.
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
    """Return the question to confirm, with the number of checkpoints and the size. With patterns,
    the question also has the number of files.

    Without patterns, no request is sent. With patterns, the cluster computes the numbers for each
    checkpoint.

    Raises:
        DetcloudError: a request failed.
    """
    if not patterns:
        size = bytes_text(sum(checkpoint.size_bytes for checkpoint in checkpoints))
        return f"Delete {count_text(len(checkpoints), 'checkpoint')}, {size}?"
    previews = [checkpoint.preview_deletion(patterns) for checkpoint in checkpoints]
    files = count_text(sum(preview["delete_files"] for preview in previews), "file")
    size = bytes_text(sum(preview["delete_bytes"] for preview in previews))
    return f"Delete {files} of {count_text(len(checkpoints), 'checkpoint')}, {size}?"


def _preview_deletions(checkpoints: list[Checkpoint], patterns: list[str]) -> int:
    """Print the totals of the deletion, and each checkpoint that cannot be deleted with the reason.
    Nothing is deleted.

    The cluster computes the numbers, and refused checkpoints do not count. Return 1 if a checkpoint
    cannot be deleted, otherwise 0.

    Args:
        patterns: patterns of the files to delete; empty for whole checkpoints.

    Raises:
        DetcloudError: a request failed.
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
    "checkpoint pin": Handler(add_uuids_argument, pin_checkpoints),
    "checkpoint unpin": Handler(add_uuids_argument, unpin_checkpoints),
    "checkpoint delete": Handler(add_delete_arguments, delete_checkpoints),
}
