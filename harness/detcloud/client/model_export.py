"""A model's version in a folder of its own, with what loads it where there is no cluster.

The folder has `checkpoint/`, `code/`, `config.yaml` and, written last, `manifest.json`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.download import OnProgress, name_write_errors
from detcloud.client.records import CheckpointFile
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import CODE_FOLDER, LOAD_FILE, STATE_FILE
from detcloud.shared.version import __version__
from detcloud.shared.yaml_writer import render_yaml

if TYPE_CHECKING:
    from detcloud.client.client import Client
    from detcloud.client.model import ModelVersion

# Of the manifest's form: it grows when readers of the one before would misread it.
FORMAT = 1
CHECKPOINT, CODE, CONFIG, MANIFEST = "checkpoint", "code", "config.yaml", "manifest.json"
LOADED_TYPE = "PyTorchTrial"
# What an export has so far, in the folder that it goes to.
UNFINISHED = ".export"


def export_version(
    client: Client, version: ModelVersion, folder: Path, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Write a version to `folder`, which is new or empty, and return its manifest.

    `on_progress` gets the bytes of the checkpoint that came and the bytes in all.

    Raises:
        DetcloudError: the folder has files or takes none, or what came is not what was stored.
    """
    checkpoint = version.checkpoint()
    experiment = client.experiment(version.experiment_id)
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
            "hparams": client.trial(version.trial_id).hparams,
            "framework": _framework_record(load_data, checkpoint.metadata),
            "detcloud_version": __version__,
            "load": load_call(load_data, files),
        }
        text = json.dumps(manifest, indent=2)
        (fresh / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    return manifest


def read_load_data(checkpoint: Path) -> dict[str, Any] | None:
    """Read what a trial class wrote beside its state, None where another kind of code wrote the
    checkpoint.
    """
    try:
        load_data = json.loads((checkpoint / LOAD_FILE).read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        return None
    is_ours = isinstance(load_data, dict) and load_data.get("trial_type") == LOADED_TYPE
    return load_data if is_ours else None


def load_call(load_data: dict[str, Any] | None, files: Sequence[CheckpointFile]) -> str | None:
    """The lines of Python that load a checkpoint where its manifest lies, None where only the
    code that wrote it can read it.
    """
    paths = {file["path"] for file in files}
    if load_data is None or STATE_FILE not in paths:
        return None
    lines = [
        "from detcloud import pytorch",
        f'trial = pytorch.load_trial_from_checkpoint_path("{CHECKPOINT}")',
    ]
    if not any(path.startswith(f"{CODE_FOLDER}/") for path in paths):
        # A checkpoint has no copy of code that is large.
        lines = ["import sys", f'sys.path.insert(0, "{CODE}")', *lines]
    return "\n".join(lines)


def _framework_record(load_data: dict[str, Any] | None, metadata: dict[str, Any]) -> dict[str, Any]:
    """Facts about the code that wrote the checkpoint; None for each that it did not tell."""
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
    """A folder whose files move into `folder` at the block's end, the manifest last.

    `folder` may be the working folder or a mount, which nothing can be renamed to. It takes one
    export at a time. Where the block fails, nothing is left of it, and what others put into
    `folder` stays.

    Raises:
        DetcloudError: `folder` is no folder, has files, or cannot be written to.
    """
    with name_write_errors(folder):
        is_new = _make_folder(folder)
        fresh = folder / UNFINISHED
        try:
            # Of two exports, one makes it.
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
                # Not where anything is in it by now.
                with suppress(OSError):
                    folder.rmdir()


def _make_folder(folder: Path) -> bool:
    """Make a folder, and return whether it is new."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        # That of a file says of itself that it is none.
        next(folder.iterdir(), None)
        return False
    return True


def _move_new(source: Path, destination: Path) -> None:
    """Move a file or folder to a name that nothing has. Raises DetcloudError for one that is."""
    if os.path.lexists(destination):
        raise DetcloudError(f"{destination} was put there by something else meanwhile")
    source.rename(destination)


def _remove_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
