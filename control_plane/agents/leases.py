"""Leases of agents: an agent that was not heard from for LEASE_MS is lost, unless the server itself
was down.

After a gap between the passes over the leases, a jump of the clock, or when more than a third of a
pool's leases lapse together, no agent is marked as lost for one lease length (loss detection is
paused): an outage of the server never kills healthy work. Leases that lapse together in the pause
for a gap get a pause of their own. While the API answers nobody, no lease is judged; once it
answers again, each agent has a full lease to come back. An agent that was silent for OUTAGE_MS_MAX
is lost even so, once two passes in a row have found the API down. Nothing is asked and nothing more
is written while agents are heard: their leases tell it.

An agent is marked in one commit with the message to its pool, on the condition that its lease and
the loss detection's row are as they were read. Calls of a session that was marked are refused until
the agent enrols again.

An instance never comes back under its name. So that the table does not grow with the number of past
instances, agents that were lost a day ago are forgotten.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.agent.actor import leases_partition
from control_plane.actors.messages.agent import AgentForgotten
from control_plane.actors.messages.pool import AgentLost
from control_plane.actors.step import CommandRefused
from control_plane.adapters import lazy_adapter
from control_plane.engine import mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.state.table import (
    Check,
    Conflict,
    Delete,
    Expect,
    Key,
    Put,
    Row,
    StateTable,
)
from detcloud.shared.outage import OUTAGE_SECONDS_MAX

LEASE_MS = 30_000
RENEW_AFTER_MS = LEASE_MS // 3
# The default interval of passes over the leases: a tick comes each minute.
PASS_INTERVAL_MS = 60_000
# A longer interval between two passes, in multiples of the usual one, is a gap.
GAP_PASSES_MAX = 2.5
LOSS_DETECTION_SORT = "~brake"
OUTAGE_MS_MAX = OUTAGE_SECONDS_MAX * 1000
FORGOTTEN_AFTER_MS = 24 * 3_600_000
# Agents of a pool forgotten in one pass, for which a function has a minute.
FORGOTTEN_MAX = 100


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one agent. `lost`: the agent was marked as lost and must enrol again."""

    epoch: int
    renewed_ms: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class LossDetection:
    """The time of the last pass over a pool's leases, 0 if none is owed: there was no live agent;
    and until when no agent is marked as lost. `for_lapses`: since leases lapsed together. `outage`:
    the API was down at that pass, or is back since and agents have a lease for their return.
    """

    passed_ms: int = 0
    paused_until_ms: int = 0
    for_lapses: bool = False
    outage: Literal["", "down", "over"] = ""


_LEASE = lazy_adapter(Lease)
_LOSS_DETECTION = lazy_adapter(LossDetection)


IsApiDown = Callable[[bool], bool]
"""Tells whether the API is down for agents, given whether it served none of a pool for a lease. It
may take seconds, and is asked when a lease has lapsed.
"""


def is_never_down(is_silent: bool) -> bool:
    """Return False, as IsApiDown does of an API that is in one process with the passes."""
    return False


@dataclass(frozen=True, slots=True)
class Marking:
    """The agents that a pass marks as lost, and the state of loss detection after it."""

    loss_detection: LossDetection
    lost: tuple[str, ...] = field(default=())


def renew_lease(table: StateTable, key: Key, row: Row | None, epoch: int, now_ms: int) -> None:
    """Renew the lease of this epoch, whose `row` was just read, once a third of it is used.

    Raises CommandRefused if the agent was marked as lost.
    """
    lease = _LEASE().validate_json(row.body) if row else None
    if row is None or lease is None or lease.epoch != epoch or lease.lost:
        raise CommandRefused(
            "conflict", f"the session {epoch} of agent {key.sort} has ended; enrol again"
        )
    # A lease from the future was written before the clock went back.
    if abs(now_ms - lease.renewed_ms) < RENEW_AFTER_MS:
        return
    body = _LEASE().dump_json(replace(lease, renewed_ms=now_ms))
    try:
        table.commit((Put(key, row.revision + 1, body, row.revision),))
    except Conflict:
        renew_lease(table, key, table.get(key), epoch, now_ms)


def decide_marking(
    leases: dict[str, Lease],
    loss_detection: LossDetection,
    now_ms: int,
    pass_ms: int = PASS_INTERVAL_MS,
    is_api_down: IsApiDown = is_never_down,
) -> Marking:
    """Decide which agents to mark as lost, given that a pass comes each `pass_ms`. A jump of the
    clock, ahead or back, is a gap between passes.
    """
    live = {agent: lease for agent, lease in leases.items() if not lease.lost}
    lapsed = sorted(
        agent for agent, lease in live.items() if abs(now_ms - lease.renewed_ms) > LEASE_MS
    )
    away = (
        loss_detection.passed_ms > 0
        and abs(now_ms - loss_detection.passed_ms) > GAP_PASSES_MAX * pass_ms
    )
    paused = LossDetection(now_ms, now_ms + LEASE_MS)
    if away:
        return Marking(replace(paused, outage="over" if loss_detection.outage else ""))
    is_paused = now_ms < loss_detection.paused_until_ms
    if is_paused and not loss_detection.outage:
        return Marking(replace(loss_detection, passed_ms=now_ms))
    if lapsed and is_api_down(len(lapsed) == len(live)):
        # Nobody can tell whether agents live that were silent for so long. Where the pass before
        # did not find the API down, a clock that has jumped may make it seem so.
        was_down = loss_detection.outage == "down"
        gone = [
            name
            for name in lapsed
            if was_down and abs(now_ms - live[name].renewed_ms) > OUTAGE_MS_MAX
        ]
        return Marking(replace(paused, for_lapses=True, outage="down"), tuple(gone))
    if lapsed and loss_detection.outage == "down":
        return Marking(replace(paused, for_lapses=True, outage="over"))
    if is_paused:
        return Marking(replace(loss_detection, passed_ms=now_ms))
    together = 3 * len(lapsed) > len(live)
    if together and not loss_detection.for_lapses:
        return Marking(replace(paused, for_lapses=True))
    return Marking(LossDetection(now_ms), tuple(lapsed))


def holds_for_outage(row: Row | None) -> bool:
    """Return whether a pool's loss detection, as stored, is paused for an outage of the API."""
    return row is not None and _LOSS_DETECTION().validate_json(row.body).outage != ""


def is_live_lease(row: Row) -> bool:
    """Return whether the agent of a lease, as stored, has not been marked as lost."""
    return not _LEASE().validate_json(row.body).lost


def read_leases(table: StateTable, pool: str) -> dict[str, Lease]:
    """Read the lease of each agent that ever enrolled in the pool and is not forgotten."""
    rows = _read_partition(table, leases_partition(pool))
    rows.pop(LOSS_DETECTION_SORT, None)
    return _decode_leases(rows)


def mark_lost_agents(
    table: StateTable,
    pool: str,
    now_ms: int,
    follow: Callable[[tuple[str, ...]], None],
    pass_ms: int = PASS_INTERVAL_MS,
    is_api_down: IsApiDown = is_never_down,
) -> Marking:
    """Run one pass over a pool's leases; passes follow each other every `pass_ms`.

    Returns the agents that were marked as lost, and the state of loss detection.
    """
    partition = leases_partition(pool)
    rows = _read_partition(table, partition)
    loss_detection_row = rows.pop(LOSS_DETECTION_SORT, None)
    loss_detection = (
        _LOSS_DETECTION().validate_json(loss_detection_row.body)
        if loss_detection_row
        else LossDetection()
    )
    leases = _decode_leases(rows)
    if all(lease.lost for lease in leases.values()):
        # A pool that is scaled to zero costs no writes but the first.
        if loss_detection != LossDetection():
            _write_loss_detection(table, partition, loss_detection_row, LossDetection())
        return Marking(LossDetection())
    marking = decide_marking(leases, loss_detection, now_ms, pass_ms, is_api_down)
    # Another pass may have found meanwhile that the API is down.
    seen = Check(
        Key(partition, LOSS_DETECTION_SORT),
        loss_detection_row.revision if loss_detection_row else Expect.ABSENT,
    )
    lost = tuple(
        agent
        for agent in marking.lost
        if _mark_agent_lost(table, pool, rows[agent], leases[agent], now_ms, loss_detection=seen)
    )
    # Each pass writes its time, so that the next one sees a gap.
    _write_loss_detection(table, partition, loss_detection_row, marking.loss_detection)
    if lost:
        follow((addresses.pool(pool),))
    return replace(marking, lost=lost)


def _write_loss_detection(
    table: StateTable, partition: str, row: Row | None, loss_detection: LossDetection
) -> None:
    """Write the state of a pool's loss detection over the `row` that was read. On a conflict
    another pass has written its own, which is as good.
    """
    revision = row.revision if row else 0
    body, expect = _LOSS_DETECTION().dump_json(loss_detection), revision or Expect.ABSENT
    with suppress(Conflict):
        table.commit((Put(Key(partition, LOSS_DETECTION_SORT), revision + 1, body, expect),))


def forget_lost_agents(engine: Engine, pool: str) -> tuple[str, ...]:
    """Forget agents of a pool that were lost long ago, FORGOTTEN_MAX at most; returns their names.

    The lease is deleted last, so that a later pass repeats what failed before.
    """
    table = engine.table
    before_ms = engine.clock() - FORGOTTEN_AFTER_MS
    rows = _read_partition(table, leases_partition(pool))
    rows.pop(LOSS_DETECTION_SORT, None)
    expired = {
        agent: lease.epoch
        for agent, lease in _decode_leases(rows).items()
        if lease.lost and lease.renewed_ms < before_ms
    }
    forgotten = []
    for agent, epoch in islice(expired.items(), FORGOTTEN_MAX):
        # An agent that has enrolled in another pool lives on there, and one that has just enrolled
        # here has another lease.
        if not engine.execute_command(addresses.agent(agent), AgentForgotten(epoch)):
            continue
        with suppress(Conflict):
            table.commit((Delete(rows[agent].key, rows[agent].revision),))
            forgotten.append(agent)
    return tuple(forgotten)


def mark_ended_agent(
    table: StateTable, pool: str, agent: str, now_ms: int, follow: Callable[[tuple[str, ...]], None]
) -> bool:
    """Mark an agent as lost whose machine has certainly ended, before its lease lapses; False if it
    was marked already. Raises Conflict if the agent has just called.
    """
    row = table.get(Key(leases_partition(pool), agent))
    lease = _LEASE().validate_json(row.body) if row else None
    if row is None or lease is None or lease.lost:
        return False
    if not _mark_agent_lost(table, pool, row, lease, now_ms, "its machine has ended"):
        raise Conflict(row.key)
    follow((addresses.pool(pool),))
    return True


def mark_all_agents(
    table: StateTable,
    pool: str,
    now_ms: int,
    follow: Callable[[tuple[str, ...]], None],
    reason: str,
) -> tuple[str, ...]:
    """Mark every agent of a pool as lost, for a reason; returns those that were not yet."""
    rows = _read_partition(table, leases_partition(pool))
    rows.pop(LOSS_DETECTION_SORT, None)
    marked = tuple(
        agent
        for agent, lease in sorted(_decode_leases(rows).items())
        if not lease.lost and _mark_agent_lost(table, pool, rows[agent], lease, now_ms, reason)
    )
    if marked:
        follow((addresses.pool(pool),))
    return marked


def _mark_agent_lost(
    table: StateTable,
    pool: str,
    row: Row,
    lease: Lease,
    now_ms: int,
    reason: str = "",
    loss_detection: Check | None = None,
) -> bool:
    agent = row.key.sort
    silence = f"it has not been heard of for {(now_ms - lease.renewed_ms) // 1000} s"
    message = AgentLost(agent, lease.epoch, reason or silence, lease.renewed_ms)
    to = addresses.pool(pool)
    sender = f"lease#{agent}"
    clock = mailbox.next_clock(0, now_ms)
    mail = mailbox.mail_write(
        mailbox.mail_key(to, clock, sender),
        sender,
        mailbox.FIRST,
        clock,
        [encode_message_for(to, message)],
        now_ms + mailbox.RECOVERY_DELAY_MS,
    )
    body = _LEASE().dump_json(replace(lease, lost=True))
    try:
        put = Put(row.key, row.revision + 1, body, row.revision)
        table.commit((put, mail, *([loss_detection] if loss_detection is not None else [])))
    except Conflict:
        return False
    return True


def _decode_leases(rows: dict[str, Row]) -> dict[str, Lease]:
    return {agent: _LEASE().validate_json(row.body) for agent, row in rows.items()}


def _read_partition(table: StateTable, partition: str) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    first: str | None = " "
    while first is not None:
        page = table.query(partition, first, "\x7f")
        rows |= {row.key.sort: row for row in page.rows}
        first = page.next_sort
    return rows
