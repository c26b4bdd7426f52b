"""The steps of a deployed cluster's tick: each runs by itself, so that none holds up another."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from control_plane.actors.suggestion_rows import SUGGESTIONS
from lambdas.builder import Cluster
from lambdas.clock import RESERVE_MS
from lambdas.deployed_configuration import apply_deployed_configuration
from lambdas.maintenance import Maintenance

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
# Less often than the recovery of mail, since an audit reads the parts of each pool.
MINUTES_PER_AUDIT = 5
MINUTES_PER_LOST_AGENTS = 20
# Not urgent, and each pass reads the index once for each shard.
MINUTES_PER_EXPIRY = 60


@dataclass(frozen=True)
class Step:
    """One task of a tick: `run`, in each minute whose number is a multiple of `minutes`. `run`
    returns after how many ms it is to run again, if it was too early for a part of it.
    """

    name: str
    run: Callable[[], int | None]
    minutes: int = 1


class StepsFailed(Exception):
    """Some steps failed; a later tick does what they were to do."""


class TickSteps:
    """The steps of the ticks of `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.provisioning = Step("provisioning", self._reconcile_pools)
        self.suggestions = Step("suggestions", self._start_suggest_function)

    def minute_steps(self, count: Callable[..., None]) -> list[Step]:
        """Return the steps of each minute; `count` adds to metrics by their names."""
        cluster = self._cluster
        maintenance = Maintenance(cluster.engine, cluster.adapters.is_api_down)

        def recover_mail() -> None:
            minute = cluster.adapters.clock() // MINUTE_MS
            driven = maintenance.redrive_mail(with_expired=minute % MINUTES_PER_EXPIRY == 0)
            count(RowsRedriven=driven.redriven, DeadLetters=driven.dead)

        def terminate_orphans() -> None:
            orphans = cluster.provisioner.orphan_cleaner.terminate_orphans()
            count(OrphansTerminated=len(orphans))

        return [
            Step("configuration", lambda: apply_deployed_configuration(cluster)),
            # Before the mail, of which there may be more than a tick has time for.
            Step("leases", maintenance.mark_lost_agents),
            Step("mail recovery", recover_mail),
            Step("budgets", maintenance.check_budgets),
            self.suggestions,
            Step("collection", self._start_collect_function),
            Step("audit", maintenance.audit_pools, MINUTES_PER_AUDIT),
            Step("lost agents", maintenance.forget_lost_agents, MINUTES_PER_LOST_AGENTS),
            # A cloud that is silent may take all the time that is left.
            self.provisioning,
            Step("orphan cleanup", terminate_orphans),
        ]

    def row_steps(self, partitions: Collection[str]) -> list[Step]:
        """Return the steps that new rows in these partitions ask for immediately."""
        wanted = {
            self.suggestions if partition == SUGGESTIONS else self.provisioning
            for partition in partitions
        }
        return [step for step in (self.suggestions, self.provisioning) if step in wanted]

    def run_row_steps(
        self,
        partitions: Collection[str],
        left_ms: Callable[[], int],
        sleep: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Run the steps that new rows in these partitions ask for. Passes over a pool keep their
        distance: what is too early for one waits that out, once and if there is time. Returns
        whether all is done: who told of the rows tells again of what had no time. Raises
        StepsFailed.
        """
        clock = self._cluster.adapters.clock
        done = _run_due_steps(self.row_steps(partitions), clock(), left_ms)
        done.refuse_failures()
        if done.again_ms and not done.unbegun and left_ms() - done.again_ms >= RESERVE_MS:
            sleep(done.again_ms / 1000)
            done = _run_due_steps([self.provisioning], clock(), left_ms)
            done.refuse_failures()
        return not done.again_ms and not done.unbegun

    def _reconcile_pools(self) -> int:
        return self._cluster.provisioner.reconciler.reconcile_pools()

    def _start_suggest_function(self) -> None:
        """Start the function that suggests, if a search waits for a suggestion."""
        if self._cluster.engine.table.query(SUGGESTIONS, " ", "\x7f", limit=1).rows:
            self._cluster.adapters.invoke_function("suggest")

    def _start_collect_function(self) -> None:
        """Start the function that removes checkpoints, if there is anything for it to do."""
        from control_plane.checkpoint_gc.collector import pending_requests

        if pending_requests(self._cluster.engine.table):
            self._cluster.adapters.invoke_function("checkpoint_gc")


def run_steps(steps: Iterable[Step], now_ms: int, left_ms: Callable[[], int]) -> int:
    """Run the steps that are due and have the time; `left_ms` is until the process is ended.
    Returns in how many ms it is too early for none of them, 0 if it was for none. Raises
    StepsFailed once all had their turn, also for what had no time: nobody tells of it again.
    """
    done = _run_due_steps(steps, now_ms, left_ms)
    for name, left in done.unbegun.items():
        log.error("%s was not started: only %d ms are left", name, left)
        done.failed.append(name)
    done.refuse_failures()
    return done.again_ms


@dataclass
class _StepsDone:
    """The outcome of steps: in how many ms it is too early for none of them, the names of those
    that failed, and how much time was left for those that were not begun.
    """

    again_ms: int = 0
    failed: list[str] = field(default_factory=list)
    unbegun: dict[str, int] = field(default_factory=dict)

    def refuse_failures(self) -> None:
        if self.failed:
            raise StepsFailed(f"failed: {', '.join(self.failed)}")


def _run_due_steps(steps: Iterable[Step], now_ms: int, left_ms: Callable[[], int]) -> _StepsDone:
    minute, done = now_ms // MINUTE_MS, _StepsDone()
    for step in steps:
        if minute % step.minutes:
            continue
        if (left := left_ms()) < RESERVE_MS:
            done.unbegun[step.name] = left
            continue
        try:
            done.again_ms = max(done.again_ms, step.run() or 0)
        except Exception:
            log.exception("%s failed", step.name)
            done.failed.append(step.name)
    return done
