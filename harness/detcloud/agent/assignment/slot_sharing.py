"""Trials that share a slot: the number of sharers, and the environment variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.core.slot_share import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping


def share_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a trial that shares a slot. {} for other trials.

    DETCLOUD_SLOT_SHARE is the trial's part of the slot. JAX reads the other variable, and uses at
    most this part of the GPU's memory.
    """
    sharers = slot_sharers(spec)
    if sharers == 1:
        return {}
    share = f"{1 / sharers:.6g}"
    return {VARIABLE: share, "XLA_PYTHON_CLIENT_MEM_FRACTION": share}


def slot_sharers(spec: Mapping[str, Any]) -> int:
    """Return how many trials may share the slot. 1 for a spec without a valid number."""
    sharers = spec.get("slot_sharers")
    return sharers if type(sharers) is int and sharers > 1 else 1
