"""The files of a checkpoint: state_dict.pth holds tensors and plain data, never code."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from detcloud.pytorch.optimization import rename_former_parts
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_checkpoint import STATE_FILE

_PLAIN = (type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device)


def save_state(state: dict[str, Any], folder: Path) -> None:
    """Write the state; DetcloudError for what `load_state` would refuse, and for a full disk."""
    check_plain(state)
    try:
        # Through Python's own file: torch's does not tell why a write failed.
        with (folder / STATE_FILE).open("wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise DetcloudError(
            f"{STATE_FILE} could not be written to {folder}: {cause}; free space there or set "
            "TMPDIR to a larger disk"
        ) from error


def load_state(folder: Path, parts: Collection[str] = ()) -> dict[str, Any]:
    """The state with its tensors on the CPU; nothing in the file can run code.

    Raises DetcloudError where the file is missing, cannot be read or lacks one of `parts`.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise DetcloudError(f"the checkpoint has no {STATE_FILE}: no PyTorchTrial wrote it")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DetcloudError(f"{STATE_FILE} cannot be read: {error}") from error
    state = rename_former_parts(state) if isinstance(state, dict) else state
    missing = [part for part in parts if not isinstance(state, dict) or part not in state]
    if missing:
        raise DetcloudError(f"{STATE_FILE} lacks {', '.join(missing)}: no PyTorchTrial wrote it")
    return state


def check_plain(value: object, place: str = "checkpoint") -> None:
    """Raise DetcloudError, naming the place, for what `load_state` would refuse."""
    # Exact types: a subclass would be pickled by a reference to its class.
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
        raise DetcloudError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}: checkpoints hold tensors, "
            "numbers, strings, lists and dicts only; return plain data from state_dict"
        )
