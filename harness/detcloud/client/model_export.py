"""Export of a model version to a folder, for use without a cluster.

The folder contains `checkpoint/`, `code/`, `config.yaml` and `manifest.json`, which is written
last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcloud.client.download import OnProgress, name_write_errors
from detcloud.client.handles import Checkpoint, read_experiment, read_trial
from detcloud.client.records import CheckpointFile
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import CODE_FOLDER, LOAD_FILE, STATE_FILE
from detcloud.shared.version import __version__
from detcloud.shared.yaml_writer import render_yaml

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

# The version of the manifest's format. Increase the number if old readers would misread a change.
FORMAT = 1
CHECKPOINT, CODE, CONFIG, MANIFEST = "checkpoint", "code", "config.yaml", "manifest.json"
LOADED_TYPE = "PyTorchTrial"
# The folder for unfinished files, in the folder of the export.
UNFINISHED = ".export"


class ExportedVersion(Protocol):
    """The parts of a `ModelVersion` that an export needs."""

    @property
    def model(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def trial_id(self) -> int: ...

    @property
    def experiment_id(self) -> int: ...

    def checkpoint(self) -> Checkpoint: ...


def export_version(
    client: Requester, version: ExportedVersion, folder: Path, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Write a model version to a new or empty folder, and return the manifest.

    The folder then contains the checkpoint, the experiment's model code and configuration, and the
    manifest: the constants CHECKPOINT, CODE, CONFIG and MANIFEST are the names. After an error,
    all files of the export are deleted. A folder that this call created is deleted, too.

    Args:
        on_progress: called with the bytes of the checkpoint received and the total bytes.

    Raises:
        DetcloudError: the folder is not empty or cannot be written, or a download does not match
            its recorded digest.
    """
    checkpoint = version.checkpoint()
    experiment = read_experiment(client, version.experiment_id)
    with _fresh_folder(folder) as fresh:
        files = checkpoint.files()
        checkpoint.download(fresh / CHECKPOINT, on_progress)
        experiment.download_model_def(fresh / CODE)
        (fresh / CONFIG).write_text(render_yaml(experiment.config), encoding="utf-8")
        load_data = read_load_data(fresh / CHECKPOINT)
        manifest = {
            "format": FORMAT,
            "model": version.model,
            "version": version.number,
            "name": version.name,
            "checkpoint": {
                "uuid": checkpoint.uuid,
                "steps_completed": checkpoint.steps_completed,
                "metric": checkpoint.metric,
                "metadata": checkpoint.metadata,
                "files": [_file_record(file) for file in files],
            },
            "code": {"sha256": experiment.code_sha256},
            "experiment_id": experiment.id,
            "trial_id": version.trial_id,
            "hparams": read_trial(client, version.trial_id).hparams,
            "framework": _framework_record(load_data, checkpoint.metadata),
            "detcloud_version": __version__,
            "load": load_call(load_data, files),
        }
        text = json.dumps(manifest, indent=2)
        (fresh / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    return manifest


def read_load_data(checkpoint: Path) -> dict[str, Any] | None:
    """Read the file of a checkpoint that says how to load a trial class.

    Return None if the file is missing or unreadable, or if another kind of code wrote it.
    """
    try:
        load_data = json.loads((checkpoint / LOAD_FILE).read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        return None
    is_ours = isinstance(load_data, dict) and load_data.get("trial_type") == LOADED_TYPE
    return load_data if is_ours else None


def load_call(load_data: dict[str, Any] | None, files: Sequence[CheckpointFile]) -> str | None:
    """Return Python code that loads the exported checkpoint, run in the export's folder.

    Return None if only the code that wrote the checkpoint can read it.
    """
    paths = {file["path"] for file in files}
    if load_data is None or STATE_FILE not in paths:
        return None
    lines = [
        "from detcloud import pytorch",
        f'trial = pytorch.load_trial_from_checkpoint_path("{CHECKPOINT}")',
    ]
    if not any(path.startswith(f"{CODE_FOLDER}/") for path in paths):
        # A checkpoint does not contain large code. The export has the code in its own folder.
        lines = ["import sys", f'sys.path.insert(0, "{CODE}")', *lines]
    return "\n".join(lines)


def _framework_record(load_data: dict[str, Any] | None, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return facts about the code that wrote the checkpoint."""
    told = load_data or {}
    return {
        "name": metadata.get("framework"),
        "trial_type": told.get("trial_type"),
        "trial_class": told.get("trial_cls_spec"),
        "torch_version": told.get("torch_version"),
    }


def _file_record(file: CheckpointFile) -> dict[str, Any]:
    return {"path": file["path"], "size": file["size"], "sha256": file["sha256"]}


@contextmanager
def _fresh_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move the files to `folder` at the end of the block.

    The temporary folder is inside `folder`, because nothing can be renamed to a mount or the
    working folder. The manifest is moved last. After an error, the moved files and a folder that
    was created here are removed; files of others stay.

    Raises:
        DetcloudError: `folder` is no folder, is not empty, cannot be written, or another export is
            in progress there.
    """
    with name_write_errors(folder):
        is_new = _make_folder(folder)
        fresh = folder / UNFINISHED
        try:
            # Only one of two exports into this folder succeeds here.
            fresh.mkdir()
        except FileExistsError:
            raise DetcloudError(
                f"{folder} is not empty: another export is being written there, or was cut short; "
                f"name another folder, or remove {fresh} once nothing writes to it"
            ) from None
        moved: list[Path] = []
        try:
            if any(path != fresh for path in folder.iterdir()):
                raise DetcloudError(f"{folder} is not empty; name a folder that is new or empty")
            yield fresh
            for name in (CHECKPOINT, CODE, CONFIG, MANIFEST):
                _move_new(fresh / name, folder / name)
                moved.append(folder / name)
        except BaseException:
            _remove_paths(moved)
            raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            if is_new:
                # Fails if the folder has files, which then stay.
                with suppress(OSError):
                    folder.rmdir()


def _make_folder(folder: Path) -> bool:
    """Create a folder and all parents. Return True for a new folder, False for an existing folder.

    Raises OSError if `folder` is a file, cannot be created, or exists and cannot be listed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        # Raises NotADirectoryError if the path is a file.
        next(folder.iterdir(), None)
        return False
    return True


def _move_new(source: Path, destination: Path) -> None:
    """Rename a file or folder to `destination`. Raises DetcloudError if `destination` exists."""
    if os.path.lexists(destination):
        raise DetcloudError(f"{destination} was put there by something else meanwhile")
    source.rename(destination)


def _remove_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
