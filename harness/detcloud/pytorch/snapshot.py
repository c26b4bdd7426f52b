"""The files of a checkpoint. `state_dict.pth` contains tensors and plain data, never code."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from detcloud.pytorch.optimization import MODELS, OPTIMIZERS
from detcloud.pytorch.original_checkpoint import (
    check_readable,
    read_state,
    state_path,
    to_current_parts,
)
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import STATE_FILE

_PLAIN = (type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device)


def save_state(state: dict[str, Any], folder: Path) -> None:
    """Write the state to `folder`.

    Raises DetcloudError for objects that `load_state` would refuse, and if the file cannot be
    written.
    """
    check_plain(state)
    try:
        # A Python file reports why a write failed; torch's file does not.
        with (folder / STATE_FILE).open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise DetcloudError(
            f"{STATE_FILE} could not be written to {folder}: {cause}; free space there or set "
            "TMPDIR to a larger disk"
        ) from error


def load_state(folder: Path, parts: Collection[str] = (), steps: int = 0) -> dict[str, Any]:
    """Read the state of a checkpoint at batch `steps`, with all tensors on the CPU.

    States of Determined's checkpoints are converted. The file cannot run code unless the user has
    set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD. Raises DetcloudError if the file is missing, cannot be
    read, or lacks one of `parts`.
    """
    path = state_path(folder)
    if not path.exists():
        raise DetcloudError(f"the checkpoint has no {STATE_FILE}: no PyTorchTrial wrote it")
    state: dict[str, Any] = read_state(path)
    if isinstance(state, dict):
        state = to_current_parts(state, steps)
        check_readable(state, MODELS, *(part for part in (OPTIMIZERS,) if part in parts))
    missing = [part for part in parts if not isinstance(state, dict) or part not in state]
    if missing:
        raise DetcloudError(f"{STATE_FILE} lacks {', '.join(missing)}: no PyTorchTrial wrote it")
    return state


def check_plain(value: object, place: str = "checkpoint") -> None:
    """Raise DetcloudError, naming `place`, for objects that `load_state` would refuse.

    Accepted are tensors, numbers, texts, None, torch's sizes, types and devices, and dicts, lists,
    tuples and sets of these. Subclasses are refused.
    """
    # Types are compared exactly, because a subclass is pickled by a reference to the class.
    kind = type(value)
    if isinstance(value, torch.Tensor) or kind in _PLAIN:
        return
    if isinstance(value, dict) and kind in (dict, OrderedDict, Counter):
        for key, item in value.items():
            check_plain(key, f"{place} key")
            check_plain(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple | set) and kind in (list, tuple, set):
        for index, item in enumerate(value):
            check_plain(item, f"{place}[{index}]")
    else:
        found = with_article(f"{kind.__module__}.{kind.__qualname__}")
        raise DetcloudError(
            f"{place} is {found}: checkpoints hold tensors, "
            "numbers, strings, lists and dicts only; return plain data from state_dict"
        )
