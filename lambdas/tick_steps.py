"""The steps of a deployed cluster's tick. A failed step does not stop the following steps."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.rows.webhook_rows import EVENT
from lambdas.builder import Cluster
from lambdas.clock import RESERVE_MS
from lambdas.deployed_configuration import apply_deployed_configuration
from lambdas.maintenance import Maintenance

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
WAKE_BUDGET_MS = 3_000
"""The time after which a call for new rows begins no further request of a webhook, in ms."""
TICK_BUDGET_MS = 20_000
"""The time after which a tick begins no further request of a webhook, in ms."""
TELEMETRY_MS = 30_000
"""The longest time of an export of telemetry, in ms."""
# An audit runs less often than the recovery of mail, because it reads the parts of each pool.
MINUTES_PER_AUDIT = 5
MINUTES_PER_ALARMS = 5
MINUTES_PER_LOST_AGENTS = 20
MINUTES_PER_SUMS = 360
# Deleting expired rows is not urgent, and each pass reads the index once for each shard.
MINUTES_PER_EXPIRY = 60


@dataclass(frozen=True)
class Step:
    """A task of a tick."""

    name: str
    """The name of the step in logs."""
    run: Callable[[], int | None]
    """Runs the step. Returns the delay in ms after which to run the step again, because some work
    was not due yet. Returns 0 or None if the step is complete.
    """
    minutes: int = 1
    """The period of the step: it runs in each minute since the epoch that is a multiple of this
    number.
    """
    needed_ms: int = RESERVE_MS
    """The time in ms without which the step does not start."""
    is_optional: bool = False
    """Whether a tick without the needed time skips the step silently, and does not fail."""


class StepsFailed(Exception):
    """A step failed. A later tick repeats the step. The message names all failed steps."""


class TickSteps:
    """The steps of the ticks of `cluster`.

    Attributes:
        provisioning: the step that launches and terminates instances.
        suggestions: the step that starts the function for suggestions if a search waits.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.provisioning = Step("provisioning", self._reconcile_pools)
        self.suggestions = Step("suggestions", self._start_suggest_function)

    def minute_steps(self, count: Callable[..., None]) -> list[Step]:
        """Return the steps of the tick that runs every minute, in the order to run. Run no step.

        The steps apply the deployed configuration, mark lost agents, recover mail, run schedules,
        check budgets, start the functions for suggestions and deletions, audit pools, delete the
        records of lost agents, sum up usage, check alarms, provision, terminate orphans, and
        deliver due events. With a collector, the last step exports telemetry.

        Args:
            count: adds numbers to metrics; a keyword argument for each metric.
        """
        cluster = self._cluster
        maintenance = Maintenance(
            cluster.engine, cluster.adapters.is_api_down, lambda: cluster.services
        )

        late_ms: int | None = None
        events: tuple[str, ...] = ()

        def note_events(partitions: tuple[str, ...]) -> None:
            nonlocal events
            events = partitions

        def recover_mail() -> None:
            nonlocal late_ms
            minute = cluster.adapters.clock() // MINUTE_MS
            driven = maintenance.redrive_mail(
                with_expired=minute % MINUTES_PER_EXPIRY == 0, on_events=note_events
            )
            late_ms = driven.late_ms
            count(RowsRedriven=driven.redriven, DeadLetters=driven.dead)

        def terminate_orphans() -> None:
            orphans = cluster.provisioner.orphan_cleaner.terminate_orphans()
            count(OrphansTerminated=len(orphans))

        return [
            Step("configuration", lambda: apply_deployed_configuration(cluster)),
            # Leases come before the mail, because the mail may use up the time of the tick.
            Step("leases", maintenance.mark_lost_agents),
            Step("mail recovery", recover_mail),
            Step("budgets", maintenance.check_budgets),
            self.suggestions,
            Step("collection", self._start_collect_function),
            Step("audit", maintenance.audit_pools, MINUTES_PER_AUDIT),
            Step("lost agents", maintenance.forget_lost_agents, MINUTES_PER_LOST_AGENTS),
            Step("usage sums", maintenance.sum_usage, MINUTES_PER_SUMS),
            Step("alarms", lambda: cluster.check_alarms(late_ms), MINUTES_PER_ALARMS),
            # The steps that call a cloud are last, because a slow cloud may use up the time.
            self.provisioning,
            Step("orphan cleanup", terminate_orphans),
            # Receivers are slower than clouds.
            Step("webhooks", lambda: self._deliver_events(events)),
            *self._telemetry_steps(),
        ]

    def row_steps(self, partitions: Collection[str]) -> list[Step]:
        """Return the steps to run at once for new rows in the partitions.

        The partition of waiting searches needs the step `suggestions`, and partitions of events
        need `webhooks`. Any other partition needs `provisioning`. Each step occurs once, in this
        order: suggestions, provisioning, webhooks. Empty without partitions.
        """
        events = [name for name in partitions if name.startswith(EVENT.partition)]
        wanted = {
            self.suggestions if partition == SUGGESTION.partition else self.provisioning
            for partition in partitions
            if not partition.startswith(EVENT.partition)
        }
        steps = [step for step in (self.suggestions, self.provisioning) if step in wanted]
        if events:
            # Slow receivers must not delay the steps of later rows. The tick delivers the rest.
            steps.append(Step("webhooks", lambda: self._deliver_events(events, WAKE_BUDGET_MS)))
        return steps

    def run_row_steps(
        self,
        partitions: Collection[str],
        left_ms: Callable[[], int],
        sleep: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Run the steps for new rows in the partitions, and return whether all work is complete.

        `row_steps` chooses the steps. If provisioning asks for another pass, wait once for the
        requested delay and run provisioning again, provided that the time suffices. Return False if
        work is left or a step lacked the time; the sender of the event must send the event again.
        Return True without partitions. Raises StepsFailed, after the last step, if a step failed.

        Args:
            partitions: the partitions of the new rows.
            left_ms: returns the time until the process is stopped.
            sleep: waits for seconds.
        """
        clock = self._cluster.adapters.clock
        done = _run_due_steps(self.row_steps(partitions), clock(), left_ms)
        done.refuse_failures()
        if done.again_ms and not done.unbegun and left_ms() - done.again_ms >= RESERVE_MS:
            sleep(done.again_ms / 1000)
            done = _run_due_steps([self.provisioning], clock(), left_ms)
            done.refuse_failures()
        return not done.again_ms and not done.unbegun

    def _telemetry_steps(self) -> list[Step]:
        """Return the step that exports telemetry, or no step without a collector."""
        cluster = self._cluster
        has_collector = cluster.adapters.has_collector
        if not has_collector:
            return []
        # A slow collector must not let the cloud stop the tick.
        step = Step("telemetry", cluster.export_telemetry, needed_ms=TELEMETRY_MS, is_optional=True)
        return [step]

    def _reconcile_pools(self) -> int:
        """Run a provisioner pass over all pools.

        Return the longest delay in ms that a pool requests until another pass, or 0. A pool
        requests a delay if the pass was skipped or lost a race, or if a launch is in progress.
        Raises PoolsFailed after the last pool if any pool failed.
        """
        return self._cluster.provisioner.reconciler.reconcile_pools()

    def _deliver_events(self, partitions: Sequence[str], budget_ms: int = TICK_BUDGET_MS) -> None:
        """Deliver the due events in the partitions to the receivers of webhooks.

        No attempt begins after `budget_ms`.

        Events that no receiver accepted are due again later, when the tick finds them. Raises
        TableError.
        """
        if partitions:
            self._cluster.deliverer.deliver(partitions, budget_ms)

    def _start_suggest_function(self) -> None:
        """Start the function `suggest` if any search waits for a suggestion.

        Raises TableError, and an error of the cloud if the function was not started.
        """
        if self._cluster.engine.table.query(SUGGESTION.partition, " ", "\x7f", limit=1).rows:
            self._cluster.adapters.invoke_function("suggest")

    def _start_collect_function(self) -> None:
        """Start the function `checkpoint_gc` if an experiment has pending deletions.

        Raises TableError, and an error of the cloud if the function was not started.
        """
        from control_plane.checkpoint_gc.collector import pending_requests

        if pending_requests(self._cluster.engine.table):
            self._cluster.adapters.invoke_function("checkpoint_gc")


def run_steps(steps: Iterable[Step], now_ms: int, left_ms: Callable[[], int]) -> int:
    """Run the steps that are due in the minute of `now_ms`, and log the failures.

    Return the longest delay in ms that a step requested, or 0. Raises StepsFailed after the last
    step if any step failed. A step that lacked the time is logged and counts as failed, because no
    event repeats the step.

    Args:
        left_ms: returns the time until the process is stopped. No step starts with less time left
            than the step needs.
    """
    done = _run_due_steps(steps, now_ms, left_ms)
    for name, left in done.unbegun.items():
        log.error("%s was not started: only %d ms are left", name, left)
        done.failed.append(name)
    done.refuse_failures()
    return done.again_ms


@dataclass
class _StepsDone:
    """The outcome of a sequence of steps."""

    again_ms: int = 0
    """The longest delay in ms that a step requested, or 0."""
    failed: list[str] = field(default_factory=list)
    """The names of the failed steps."""
    unbegun: dict[str, int] = field(default_factory=dict)
    """The steps that were due but lacked the time: the time left in ms, by name."""

    def refuse_failures(self) -> None:
        """Raise StepsFailed if any step failed."""
        if self.failed:
            raise StepsFailed(f"failed: {', '.join(self.failed)}")


def _run_due_steps(steps: Iterable[Step], now_ms: int, left_ms: Callable[[], int]) -> _StepsDone:
    """Run the steps that are due in the minute of `now_ms`, and return the outcome.

    An exception of a step is logged and makes the step a failed one. A step does not start with
    less than its `needed_ms` left. Such a step is in `unbegun`, unless the step is optional.
    """
    minute, done = now_ms // MINUTE_MS, _StepsDone()
    for step in steps:
        if minute % step.minutes:
            continue
        if (left := left_ms()) < step.needed_ms:
            if not step.is_optional:
                done.unbegun[step.name] = left
            continue
        try:
            done.again_ms = max(done.again_ms, step.run() or 0)
        except Exception:
            log.exception("%s failed", step.name)
            done.failed.append(step.name)
    return done
