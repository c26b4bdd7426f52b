"""`detcloud checkpoint`: lists, describes and verifies checkpoints, and sets their metadata."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.checkpoint_arguments import add_uuid_argument, load_checkpoint
from detcloud.cli.framework.argument_types import parse_count, parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.metadata_values import metadata_handler
from detcloud.cli.framework.session import add_experiment_argument, connect
from detcloud.cli.rendering.columns import CHECKPOINT_COLUMNS, CHECKPOINT_DETAILS, CHECKPOINT_LOSSES
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import Column, field_column
from detcloud.client import Checkpoint, Experiment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.shared.plurals import count_text

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
    """Add the arguments of `list_checkpoints`: EXPERIMENT, the filters `--trial`, `--best` and
    `--unrecorded`, and the output form (`--json`, `--yaml` or `--csv`).
    """
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
    """Print an experiment's checkpoints as text, CSV, JSON or YAML, and return 0. Without
    checkpoints, print only the titles, or `[]`.

    Deleted checkpoints are included. With `--trial`, print only checkpoints of this trial. With
    `--best N`, print the best N stored checkpoints by the searcher's metric, best first. With
    `--unrecorded`, print stored checkpoints that the cluster has no record of.

    Raises:
        DetcloudError: the trial of `--trial` belongs to another experiment, `--best` and
            `--unrecorded` were combined, no cluster is available, or a request failed.
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
    """Print the experiment's stored checkpoints without a record in the cluster, and return 0.
    Without such checkpoints, print only the titles, or `[]`.

    With `--trial`, print only checkpoints of this trial. An unknown trial gives an empty list.

    Raises:
        DetcloudError: `--best` was given, or a request failed.
    """
    if arguments.best is not None:
        raise DetcloudError("--best: checkpoints without a record have no metric")
    unrecorded = experiment.unrecorded_checkpoints()
    shown = [
        checkpoint for checkpoint in unrecorded if arguments.trial in (None, checkpoint["trial_id"])
    ]
    print_items(UNRECORDED_COLUMNS, [{**checkpoint} for checkpoint in shown], arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the argument UUID, stored as `uuid`, and the output form (`--json`, `--yaml` or `--csv`).
    Three commands on a single checkpoint share these.
    """
    add_uuid_argument(parser)
    add_output_options(parser)


def describe_checkpoint(arguments: Namespace) -> int:
    """Print the checkpoint of the argument UUID as text, CSV, JSON or YAML, and return 0.

    Lines and CSV columns on damage, damaged metadata and deleted files appear only if the
    checkpoint has these. JSON and YAML have all fields.

    Raises:
        DetcloudError: no cluster is available, the request failed, or no checkpoint or several
            begin with the prefix.
    """
    checkpoint = load_checkpoint(arguments)
    losses = [
        checkpoint_loss
        for checkpoint_loss in CHECKPOINT_LOSSES
        if checkpoint_loss.value(checkpoint.data)
    ]
    print_record((*CHECKPOINT_DETAILS, *losses), checkpoint.data, arguments)
    return 0


def list_files(arguments: Namespace) -> int:
    """Print the files of the checkpoint of the argument UUID with sizes and digests, and return 0.

    JSON and YAML have all fields, also the URLs for downloads. CSV has exact sizes.

    Raises:
        DetcloudError: no cluster is available, a request failed, or no checkpoint or several begin
            with the prefix.
    """
    files = load_checkpoint(arguments).files()
    print_items(FILE_COLUMNS, [{**file} for file in files], arguments)
    return 0


def verify_checkpoint(arguments: Namespace) -> int:
    """Verify the stored files of a checkpoint by reading every file. Return 0 if the files are
    intact.

    As text, print damaged files, or a sentence with the number and the size of intact files. Other
    forms print a finding for each file, also before the error. If the files are intact and the
    cluster has marked the checkpoint as damaged, remove the mark. A sentence on the mark is printed
    only as text. A progress line is drawn on stderr.

    Raises:
        DetcloudError: a file is damaged, missing or unreadable, no cluster is available, or a
            request failed.
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
    The fields of `checkpoint` are updated. If this user may not remove the mark, the sentence says
    so.

    Raises:
        DetcloudError: the cluster refused for another reason, or does not answer.
    """
    try:
        checkpoint.clear_damage()
    except ApiError as error:
        if error.code != "forbidden":
            raise
        return f"the checkpoint stays marked as damaged: {error.message}"
    return f"the checkpoint was marked as damaged and is now {checkpoint.state} again"


HANDLERS: Handlers = {
    "checkpoint list": Handler(add_list_arguments, list_checkpoints),
    "experiment list-checkpoints": Handler(add_list_arguments, list_checkpoints),
    "checkpoint describe": Handler(add_describe_arguments, describe_checkpoint),
    "checkpoint files": Handler(add_describe_arguments, list_files),
    "checkpoint verify": Handler(add_describe_arguments, verify_checkpoint),
    "checkpoint set metadata": metadata_handler(
        "checkpoint", "uuid", add_uuid_argument, load_checkpoint
    ),
}
