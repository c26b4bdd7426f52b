"""The code in a checkpoint, and the facts for creating the trial from the checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from detcloud import core
from detcloud.pytorch.former_trial import FormerTrial
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.shared.trial_checkpoint import CODE_FOLDER, LOAD_FILE

FILES_MAX = 1000
# Every checkpoint contains a copy of the code.
BYTES_MAX = 16 * 1024 * 1024
# These sections may contain secrets.
_PRIVATE_SECTIONS = ("checkpoint_storage", "tensorboard_storage", "environment", "integrations")


def write_code(
    folder: Path,
    trial: PyTorchTrial,
    core_context: core.Context,
    trial_type: str = "PyTorchTrial",
) -> None:
    """Write `load_data.json` and, on a cluster, a copy of the code below `code/`, into `folder`.

    The code is the working directory without hidden files and folders, compiled Python files and
    symbolic links. If the code has more than FILES_MAX files or BYTES_MAX bytes,
    print a notice and do not copy it. Sections of the configuration that may contain secrets are
    left out. `trial_type` says which function can load the checkpoint:
    `load_trial_from_checkpoint_path` loads only a PyTorchTrial. Raises OSError if a file cannot be
    read or written.
    """
    kind = type(trial.trial if isinstance(trial, FormerTrial) else trial)
    config = core_context.info.config
    load_data = {
        "trial_type": trial_type,
        "trial_cls_spec": f"{_module_name(kind)}:{kind.__qualname__}",
        "script_folder": _script_folder(kind),
        "hparams": core_context.info.hparams,
        "experiment_config": {
            name: section for name, section in config.items() if name not in _PRIVATE_SECTIONS
        },
        "torch_version": torch.__version__,
    }
    (folder / LOAD_FILE).write_text(json.dumps(load_data, default=str))
    if core_context.on_cluster:
        _copy_code(Path.cwd(), folder / CODE_FOLDER)


def _module_name(kind: type[Any]) -> str:
    """Return the name for importing the class's module.

    For a script, that is the file's name without suffix, or `__main__` without a file.
    """
    if kind.__module__ != "__main__":
        return kind.__module__
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else "__main__"


def _script_folder(kind: type[Any]) -> str:
    """Return the folder of the class's script relative to the code, the working directory.

    Return "" for the working directory itself, for a script outside, and for a class that no script
    defines.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    if kind.__module__ != "__main__" or not file:
        return ""
    folder, code = Path(file).resolve().parent, Path.cwd().resolve()
    return folder.relative_to(code).as_posix() if code in folder.parents else ""


def _copy_code(code: Path, target: Path) -> None:
    """Copy the files of the code below `target`, without hidden and compiled files and links.

    Copy nothing, and print a notice to stderr, if the files exceed FILES_MAX or BYTES_MAX. Raises
    OSError if a file cannot be read or written.
    """
    files, size = [], 0
    for file in _code_files(code):
        files.append(file)
        size += file.stat().st_size
        if len(files) > FILES_MAX or size > BYTES_MAX:
            print(
                f"[detcloud] the checkpoint has no copy of {code}: there are over {FILES_MAX} "
                f"files or {BYTES_MAX >> 20} MiB",
                file=sys.stderr,
            )
            return
    for file in files:
        place = target / file.relative_to(code)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def _code_files(code: Path) -> Iterator[Path]:
    """Yield the files of the code, sorted, without hidden and compiled files and links."""
    for root, folders, names in os.walk(code):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name != "__pycache__"
        )
        for name in sorted(names):
            file = Path(root, name)
            is_code = not name.startswith(".") and not name.endswith(".pyc")
            if is_code and file.is_file() and not file.is_symlink():
                yield file
