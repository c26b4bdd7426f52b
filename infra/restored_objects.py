"""The restore of objects in a stack's buckets: from versions, and from copies in another region."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.checkpoints import CheckpointRecord
from control_plane.engine.engine import Engine
from control_plane.state.table import StateTable, TableError
from detcloud.shared.plurals import count_text
from infra.bucket_objects import Buckets, NoBucket, ObjectsCopied, copy_lost, copy_objects
from infra.checkpoint_files import (
    list_own_checkpoints,
    restore_event_files,
    restore_files,
    withdraw_damage,
)
from infra.restoration import FilesReport, ObjectsReport, RestoreFailed, Steps
from lambdas.clock import now_ms


@dataclass(frozen=True)
class StackBuckets:
    """The names of a stack's buckets, and of the copies in another region."""

    objects: str
    """The bucket of code, logs and metrics."""
    checkpoints: str
    """The bucket of checkpoints."""
    copies: Mapping[str, str]
    """The names of the copies, by `objects` and `checkpoints`; without buckets that are not copied.
    """


def restore_objects(
    buckets: Buckets, names: StackBuckets, table: StateTable, moment: datetime | None, steps: Steps
) -> ObjectsReport:
    """Restore the lost objects of a stack, while the functions run. A repeated call continues.

    Files of checkpoints are restored if the state names the checkpoint. Code, logs and metrics are
    restored from the copy; with `moment`, also from versions that were current then.

    Raises:
        RestoreFailed: a bucket of the stack does not exist, or the state cannot be read.
        Exception: the errors of the cloud.
    """
    try:
        with steps.step(f"restoring the objects of {names.objects}"):
            restored = _restore_plain(buckets, names, moment, steps)
        with steps.step(f"restoring the files of checkpoints in {names.checkpoints}"):
            files = _restore_checkpoints(buckets, names, table, moment, steps)
        with steps.step(f"restoring the TensorBoard files in {names.checkpoints}"):
            copy, engine = names.copies.get("checkpoints", ""), Engine(table, now_ms)
            restored += restore_event_files(buckets, engine, names.checkpoints, copy, moment)
    except NoBucket as error:
        raise _missing(error) from None
    except TableError as error:
        raise RestoreFailed(f"the state cannot be read: {error}; try again") from None
    return ObjectsReport(files, restored)


def restore_named_files(
    buckets: Buckets, names: StackBuckets, table: StateTable, steps: Steps
) -> None:
    """Restore the files of checkpoints of a restored state's experiments, before the functions run.

    Ended experiments can wait, and are left out. Report the numbers, and the checkpoints that stay
    lost. A missing bucket is a warning, because the state is whole. Raise TableError and the errors
    of the cloud.
    """
    with steps.step(f"checking the checkpoints of unended experiments in {names.checkpoints}"):
        try:
            found = _restore_checkpoints(buckets, names, table, None, steps, only_unended=True)
        except NoBucket as error:
            steps.progress(
                f"warning: the bucket {error} does not exist: deploy with `--new-stores`, and then "
                "restore the files with `--objects`"
            )
            return
    for line in describe_files(found):
        steps.progress(line)


def describe_files(found: FilesReport) -> list[str]:
    """Return the lines about a restore of files: the numbers, and each lost checkpoint."""
    whole = count_text(len(found.restored), "checkpoint")
    files = count_text(found.files, "file")
    lines = [
        f"{count_text(found.intact, 'checkpoint')} intact, {whole} restored ({files}), "
        f"{len(found.lost)} lost"
    ]
    return lines + [f"lost: {folder}" for folder in found.lost]


def copy_siblings(
    buckets: Buckets, state_copy: str, targets: Mapping[str, str], steps: Steps
) -> None:
    """Copy the objects of the copies of buckets into the stack's buckets, which lack the objects.

    Report a warning if `state_copy` is no name of the setting `copies`, and copy nothing. Raise
    RestoreFailed without a bucket of the stack, and the errors of the cloud.

    Args:
        state_copy: the bucket of exports; the names of the other copies follow from it.
        targets: the stack's buckets by `objects` and `checkpoints`.
    """
    for name, target in targets.items():
        source = sibling_bucket(state_copy, name)
        if not source:
            steps.progress(
                f"warning: {state_copy} is no bucket of detcloud:copies; copy the objects of the "
                f"former bucket of {name} into {target} yourself"
            )
            continue
        with steps.step(f"copying the objects of {source} into {target}"):
            found = _copy_sibling(buckets, source, target)
        if found is None:
            steps.progress(f"warning: the bucket {source} does not exist; nothing was copied")
        else:
            objects = count_text(found.copied, "object")
            steps.progress(f"{objects} copied, {found.unchanged} unchanged")


def _copy_sibling(buckets: Buckets, source: str, target: str) -> ObjectsCopied | None:
    """Copy the objects that `target` lacks; return None if `source` does not exist.

    Raise RestoreFailed without `target`, and the errors of the cloud.
    """
    try:
        return copy_objects(buckets, source, target)
    except NoBucket as error:
        raise _missing(error) from None


def _missing(error: NoBucket) -> RestoreFailed:
    """Return the error about a missing bucket of the stack."""
    return RestoreFailed(
        f"the bucket {error} does not exist: create the bucket with `detcloud deploy` and "
        "`--new-stores` first"
    )


def sibling_bucket(state_copy: str, bucket: str) -> str:
    """Return the name of a bucket's copy, derived from the name `state_copy` of an exports' bucket.

    `bucket` is `objects` or `checkpoints`. Return "" if `state_copy` is no name of a stack.
    """
    found = re.fullmatch(r"(detcloud-[a-z0-9-]+)-state-([0-9]{5,15})-copy", state_copy)
    return f"{found[1]}-{bucket}-{found[2]}-copy" if found else ""


def _restore_plain(
    buckets: Buckets, names: StackBuckets, moment: datetime | None, steps: Steps
) -> int:
    """Restore lost code, logs and metrics, and return the number of objects.

    Report why nothing can be restored. Raise NoBucket and the errors of the cloud.
    """
    copy = names.copies.get("objects", "")
    sources = [*([names.objects] if moment is not None else []), *([copy] if copy else [])]
    restored = 0
    for source in sources:
        found = copy_lost(buckets, source, names.objects, moment)
        if found is None:
            steps.progress(f"warning: the bucket {source} does not exist; nothing was copied")
        else:
            restored += found.copied
    if not copy:
        steps.progress(
            f"warning: {names.objects} has no copy (detcloud:copies): lost code, logs and metrics "
            "come back only with --time, if the bucket keeps versions"
        )
    return restored


def _restore_checkpoints(
    buckets: Buckets,
    names: StackBuckets,
    table: StateTable,
    moment: datetime | None,
    steps: Steps,
    *,
    only_unended: bool = False,
) -> FilesReport:
    """Restore missing files of stored checkpoints. Withdraw damage marks caused by missing files.

    Raise NoBucket, TableError and the errors of the cloud.
    """
    engine = Engine(table, now_ms)
    records = list_own_checkpoints(engine, only_unended=only_unended)
    copy = names.copies.get("checkpoints", "")
    withdrawn = 0

    def withdraw(record: CheckpointRecord) -> None:
        nonlocal withdrawn
        try:
            withdrawn += withdraw_damage(engine, record)
        except CommandRefused as error:
            uuid = record.checkpoint.uuid
            steps.progress(
                f"warning: checkpoint {uuid} has all files, and is still marked as damaged: "
                f"{error}; run `detcloud checkpoint verify {uuid}`"
            )

    found = restore_files(buckets, records, names.checkpoints, copy, moment, withdraw)
    if withdrawn:
        steps.progress(f"{count_text(withdrawn, 'checkpoint')} no longer marked as damaged")
    return found
