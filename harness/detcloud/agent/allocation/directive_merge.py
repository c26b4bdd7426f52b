"""The merging of a machine's notice and a run's stop into the cluster's directives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.shared.notices import Notice


def merge_stop(directives: Mapping[str, Any], stop: Notice | None) -> dict[str, Any]:
    """Return a copy of the directives with the stop of the run as `preempt` and as `stop`.

    `preempt` stays if it has a deadline that is not later. Return an unchanged copy without a stop.
    A reader tells by `stop` whether the run is stopped, or only the end of the machine is near.
    """
    merged = merge_notice(directives, stop)
    if stop is not None:
        merged["stop"] = {"deadline_ms": stop.deadline_ms, "reason": stop.reason}
    return merged


def merge_notice(directives: Mapping[str, Any], notice: Notice | None) -> dict[str, Any]:
    """Return a copy of the directives with the notice as `preempt`.

    Return an unchanged copy without a notice, or if the directives' own `preempt` has a deadline
    that is not later than the notice's.
    """
    if notice is None:
        return dict(directives)
    preempt = directives.get("preempt")
    deadline = preempt.get("deadline_ms") if isinstance(preempt, dict) else None
    if isinstance(deadline, int) and deadline <= notice.deadline_ms:
        return dict(directives)
    return {
        **directives,
        "preempt": {"deadline_ms": notice.deadline_ms, "reason": notice.reason},
    }
