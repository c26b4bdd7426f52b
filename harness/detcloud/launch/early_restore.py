"""The early restore: a trial's first checkpoint is downloaded while the trial imports its code.

Only trial classes begin one, because their Trainer restores all files of the checkpoint. On a node
with several processes, the first process restores for all.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING

from detcloud.shared.early_download import FILES, MANIFEST, begin_early_download
from detcloud.shared.trial_directory import CheckpointReference, TrialDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from detcloud.shared.early_download import Notify

# The variables by which launchers number the processes of a node.
_LOCAL_RANKS = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK")
# On a busy machine with two processors, the download slowed the imports by more than it saved.
PROCESSORS_MIN = 4


def begin_early_restore() -> None:
    """Begin to download the checkpoint that the trial of DETCLOUD_TRIAL_DIR resumes from.

    Do nothing without a cluster, a checkpoint or a store, in other processes than the first of a
    node, and on machines with fewer than PROCESSORS_MIN processors. The process must have a single
    thread. Raises DetcloudError if the trial's specification is missing or malformed.
    """
    if (os.cpu_count() or 1) < PROCESSORS_MIN:
        return
    if any(os.environ.get(name, "0") != "0" for name in _LOCAL_RANKS):
        return
    directory = TrialDirectory.from_environment()
    if directory is None or directory.spec.storage is None:
        return
    reference = directory.spec.latest_checkpoint
    if reference is not None:
        begin_early_download(reference, partial(_download, reference, directory.spec.storage))


def _download(
    reference: CheckpointReference, storage: Mapping[str, Any], folder: Path, notify: Notify
) -> None:
    """Download and verify a checkpoint, in the child process.

    Write the manifest to `folder`, call `notify`, and write the files to the subfolder FILES.
    Raises CheckpointDamaged, StorageError and OSError.
    """
    # Imported in the child, so that the first line of the user's code runs as soon as without an
    # early restore (docs/benchmarks.md, `starts`).
    from detcloud.core.checkpoint_reader import CheckpointReader
    from detcloud.storage import build_store

    reader = CheckpointReader(build_store(storage), reference)
    (folder / MANIFEST).write_text(json.dumps(reader.read_manifest()), encoding="utf-8")
    notify()
    reader.copy_files(folder / FILES)
