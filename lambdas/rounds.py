"""What the tick of a deployed cluster does: each step by itself, so that none holds up another."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from control_plane.actors.experiment_suggestions import SUGGESTIONS
from control_plane.dispatch.engine import Engine
from lambdas.deployed import (
    configured,
    gc_invoked_if_due,
    provisioner,
    suggest_invoked_if_waited_for,
)
from lambdas.provisioning import provision, sweep_up
from lambdas.upkeep import Upkeep

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
# Books are compared less often than mail is looked for: it takes a read of each pool's parts.
MINUTES_PER_AUDIT = 5
MINUTES_PER_FORGETTING = 20


@dataclass(frozen=True)
class Step:
    """`run` is done in each minute whose number `minutes` divides."""

    name: str
    run: Callable[[], object]
    minutes: int = 1


def _provision() -> None:
    provision(provisioner().reconciler)


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
        provisioning,
        Step("sweep", lambda: count(InstancesSwept=sweep_up(provisioner().sweep))),
        Step("audit", upkeep.audit, MINUTES_PER_AUDIT),
        Step("forgetting", upkeep.forget_lost, MINUTES_PER_FORGETTING),
        suggesting,
        Step("collection", gc_invoked_if_due),
    ]


class RoundFailed(Exception):
    """Steps failed; what they were to do is done by a later round."""


def run_round(steps: Iterable[Step], now_ms: int) -> None:
    """Runs the steps that are due. Raises RoundFailed once all had their turn."""
    minute = now_ms // MINUTE_MS
    failed = []
    for step in steps:
        if minute % step.minutes:
            continue
        try:
            step.run()
        except Exception:
            log.exception("%s failed", step.name)
            failed.append(step.name)
    if failed:
        raise RoundFailed(f"failed: {', '.join(failed)}")
