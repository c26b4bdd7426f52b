"""What the tick of a deployed cluster does: each step by itself, so that none holds up another."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from control_plane.actors.experiment_suggestions import SUGGESTIONS
from control_plane.dispatch.engine import Engine
from lambdas.clock import now_ms
from lambdas.deployed import (
    configured,
    gc_invoked_if_due,
    provisioner,
    suggest_invoked_if_waited_for,
)
from lambdas.provisioning import provision, sweep_up
from lambdas.stream import RESERVE_MS
from lambdas.upkeep import Upkeep

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
# Books are compared less often than mail is looked for: it takes a read of each pool's parts.
MINUTES_PER_AUDIT = 5
MINUTES_PER_FORGETTING = 20


@dataclass(frozen=True)
class Step:
    """`run` is done in each minute whose number `minutes` divides. Where it was too early for some
    of it, it returns in how many ms it no longer is.
    """

    name: str
    run: Callable[[], int | None]
    minutes: int = 1


def _provision() -> int:
    return provision(provisioner().reconciler)


provisioning = Step("provisioning", _provision)
suggesting = Step("suggestions", suggest_invoked_if_waited_for)


def short_round(partitions: Collection[str]) -> list[Step]:
    """What new rows of these partitions want done at once."""
    wanted = {suggesting if it == SUGGESTIONS else provisioning for it in partitions}
    return [step for step in (suggesting, provisioning) if step in wanted]


def whole_round(engine: Engine, count: Callable[..., None]) -> list[Step]:
    """Everything that is looked after; `count` adds to metrics by their names."""
    upkeep = Upkeep(engine)

    def drive() -> None:
        driven = upkeep.drive()
        count(RowsRedriven=driven.redriven, DeadLetters=driven.dead)

    return [
        Step("configuration", configured),
        Step("late mail", drive),
        Step("leases", upkeep.mark_lost),
        Step("budgets", upkeep.check_budgets),
        suggesting,
        Step("collection", gc_invoked_if_due),
        Step("audit", upkeep.audit, MINUTES_PER_AUDIT),
        Step("forgetting", upkeep.forget_lost, MINUTES_PER_FORGETTING),
        # A cloud that is silent may take all the time that is left.
        provisioning,
        Step("sweep", lambda: count(InstancesSwept=sweep_up(provisioner().sweep))),
    ]


class RoundFailed(Exception):
    """Steps failed; what they were to do is done by a later round."""


def run_round(steps: Iterable[Step], now_ms: int, left_ms: Callable[[], int]) -> int:
    """Runs the steps that are due and have the time; `left_ms` is until the process is ended.
    Returns in how many ms it is too early for none of them, 0 if it was for none. Raises
    RoundFailed once all had their turn.
    """
    minute = now_ms // MINUTE_MS
    failed = []
    again_ms = 0
    for step in steps:
        if minute % step.minutes:
            continue
        if (left := left_ms()) < RESERVE_MS:
            log.error("%s is not begun: %d ms are left", step.name, left)
            failed.append(step.name)
            continue
        try:
            again_ms = max(again_ms, step.run() or 0)
        except Exception:
            log.exception("%s failed", step.name)
            failed.append(step.name)
    if failed:
        raise RoundFailed(f"failed: {', '.join(failed)}")
    return again_ms


def run_wake(
    partitions: Collection[str],
    left_ms: Callable[[], int],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Does at once what new rows of these partitions want. Passes over a pool keep their distance:
    what is too early for one waits that out, once and if there is time. Returns whether all is
    done. Raises RoundFailed.
    """
    again_ms = run_round(short_round(partitions), now_ms(), left_ms)
    if again_ms and left_ms() - again_ms >= RESERVE_MS:
        sleep(again_ms / 1000)
        again_ms = run_round([provisioning], now_ms(), left_ms)
    return again_ms == 0
