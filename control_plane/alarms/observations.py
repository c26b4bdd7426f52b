"""The reads of the rows that the conditions of alarms need."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial

from control_plane.actors import addresses
from control_plane.actors.job_row import POOLS
from control_plane.actors.pool.quiet_hours import quiet_ended_ms
from control_plane.actors.pool.state import PoolState, job_queue_of, settings_of
from control_plane.alarms import kinds
from control_plane.alarms.conditions import (
    WaitingJob,
    add_hourly_cost,
    find_failed_boots,
    find_hourly_cost,
    find_late_messages,
    find_old_machines,
    find_queue_waits,
    hourly_cost_micros,
)
from control_plane.alarms.records import CostHistory, Finding
from control_plane.alarms.rows import COST_HISTORY, decode_history, encode_history
from control_plane.config.alarms import Alarms
from control_plane.engine.engine import Engine
from control_plane.engine.read_only import read_only_context
from control_plane.fleet.records import FleetRow, InstanceRow
from control_plane.fleet.rows import read_fleets, read_instances
from control_plane.scheduling.quiet_hours import is_held_back, period_at
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Put

# The most waiting jobs of a pool whose requests a check reads. Jobs with low numbers come first.
WAITING_JOBS_MAX = 50

Condition = Callable[[], Iterable[Finding]]
"""Checks an alarm: returns a finding for each pool in which the condition is true, or for the
cluster. Raises TableError if rows cannot be read, and ValueError for rows that cannot be decoded.
"""


class Observations:
    """The rows that a check of the alarms reads. Each row is read on first use.

    Args:
        engine: the engine of the cluster.
        settings: the thresholds.
    """

    def __init__(self, engine: Engine, settings: Alarms) -> None:
        self._engine = engine
        self._settings = settings

    def conditions(self, late_ms: int | None) -> dict[str, Condition]:
        """Return the conditions to check, by the name of the alarm.

        Args:
            late_ms: the time that the oldest late message had waited; None if unknown. Without the
                time, the condition of `lag` is left out.
        """
        settings, now_ms = self._settings, self._engine.clock()
        found: dict[str, Condition] = {
            kinds.FAILED_BOOTS.name: lambda: find_failed_boots(self._fleets, settings.failed_boots),
            kinds.QUEUE_WAIT.name: lambda: find_queue_waits(
                self._waiting_jobs(), settings.queue_wait, now_ms
            ),
            kinds.MACHINE_AGE.name: lambda: find_old_machines(
                self._instances, settings.machine_age, now_ms
            ),
            kinds.HOURLY_COST.name: self._find_hourly_cost,
        }
        if late_ms is not None:
            found[kinds.LAG.name] = partial(find_late_messages, late_ms, settings.lag)
        return found

    @cached_property
    def _fleets(self) -> list[FleetRow]:
        """The fleets of all pools. Raises TableError."""
        return read_fleets(self._engine.table)

    @cached_property
    def _instances(self) -> Mapping[str, list[InstanceRow]]:
        """The live instances of each pool. Raises TableError."""
        table = self._engine.table
        return {fleet.pool: read_instances(table, fleet.pool) for fleet in self._fleets}

    def _find_hourly_cost(self) -> Iterable[Finding]:
        """Record the present cost per hour, and return the findings of the alarm `hourly-cost`.

        The record is written only if the cost is the highest of its hour. Raises TableError.
        """
        engine, settings = self._engine, self._settings
        now_ms, micros = engine.clock(), hourly_cost_micros(self._instances)
        row = engine.table.get(COST_HISTORY)
        before: CostHistory | None = None if row is None else decode_history(row.body)
        history = add_hourly_cost(before, micros, now_ms)
        if history != before:
            revision = 0 if row is None else row.revision
            body = encode_history(history, None if row is None else row.body)
            expected = revision or Expect.ABSENT
            engine.table.commit((Put(COST_HISTORY, revision + 1, body, expected),))
        factor, minimum = settings.hourly_cost_factor, settings.hourly_cost_minimum
        return tuple(find_hourly_cost(history, micros, factor, minimum, now_ms))

    def _waiting_jobs(self) -> Iterator[WaitingJob]:
        """Yield the job of each pool that has waited longest without any slot.

        Yield nothing for pools without such jobs. Raises TableError.
        """
        for row in read_rows(self._engine.table, POOLS):
            if (wait := self._longest_wait(row.key.sort)) is not None:
                yield wait

    def _longest_wait(self, pool: str) -> WaitingJob | None:
        """Return the job of a pool that has waited longest without any slot, if any.

        Return None without such jobs. In a pool with more waiting jobs, the WAITING_JOBS_MAX jobs
        with the lowest numbers count. Jobs that quiet hours hold back do not count. A wait counts
        from the end of the last quiet hours at the earliest. Raises TableError.
        """
        address = addresses.pool(pool)
        state = self._engine.read_state(address)
        if not isinstance(state, PoolState) or state.removed or not state.queued:
            return None
        context = read_only_context(self._engine, address)
        queue, settings = job_queue_of(context), settings_of(context)
        period = period_at(settings.quiet_periods, self._engine.clock())
        waits = []
        for number, group in queue.groups_at_work():
            priority = group.priority_or(settings.default_priority)
            if not group.waits_for_slots or (period and is_held_back(period, priority)):
                continue
            request = next(queue.requests(number), None)
            if request is not None:
                # A ticket is "submitted_ms.requested_ms.trial_id".
                since_ms = int(request.ticket.split(".")[1])
                since_ms = max(since_ms, quiet_ended_ms(settings, self._engine.clock()))
                waits.append(WaitingJob(pool, number, since_ms, state.wait_reason))
            if len(waits) == WAITING_JOBS_MAX:
                break
        return min(waits, key=lambda wait: wait.since_ms, default=None)
