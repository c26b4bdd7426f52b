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
    add_patterns_option(
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
    "checkpoint pin": Handler(add_uuids_argument, pin_checkpoints),
    "checkpoint unpin": Handler(add_uuids_argument, unpin_checkpoints),
    "checkpoint delete": Handler(add_delete_arguments, delete_checkpoints),
}
