"""Leases: an agent that has not been heard of for LEASE_MS is lost, unless it is we who were
away.

"Cannot see" is not "dead". After a gap in our own passes, a clock that jumped, or when more than a
third of a pool's leases lapse together, marking pauses for one lease length: an outage of ours
never kills healthy work. An agent is marked in one commit: its lease says so if the row is still as
read, and the pool is told. What a session that was marked still says is refused until it has
enrolled again.

An instance never comes back under its name, and nothing is to grow with how many there have been:
who was lost a day ago is forgotten.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from control_plane.actors import addresses
from control_plane.actors.agent import leases_of
from control_plane.actors.agent_messages import AgentForgotten
from control_plane.actors.pool_messages import AgentLost
from control_plane.actors.step import Refused
from control_plane.adapters import adapter
from control_plane.dispatch import mailbox
from control_plane.dispatch.engine import Engine
from control_plane.dispatch.kinds import encode_for
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, Row, StateTable

LEASE_MS = 30_000
RENEW_AFTER_MS = LEASE_MS // 3
# How often somebody looks, where it is not said: a tick comes each minute.
PASS_MS = 60_000
# Between two passes so many times that; one that is missing is nothing yet.
GAP_PASSES_MAX = 2.5
BRAKE = "~brake"
FORGOTTEN_AFTER_MS = 24 * 3_600_000
# Of a pool in one pass, for which a function has a minute.
FORGOTTEN_MAX = 100


@dataclass(frozen=True, slots=True)
class Lease:
    """The row of one agent. `lost`: it was marked and must enrol again."""

    epoch: int
    renewed_ms: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Brake:
    """When the pool's leases were last looked at, and until when nobody is marked."""

    passed_ms: int = 0
    paused_until_ms: int = 0


_LEASE = adapter(Lease)
_BRAKE = adapter(Brake)


@dataclass(frozen=True, slots=True)
class Marking:
    """Whom a pass marks as lost, and the brake after it."""

    brake: Brake
    lost: tuple[str, ...] = field(default=())


def renew(table: StateTable, key: Key, row: Row | None, epoch: int, now_ms: int) -> None:
    """Renews the lease of this epoch, whose `row` was read just now, once a third of it is used.

    Raises Refused if it was lost.
    """
    lease = _LEASE().validate_json(row.body) if row else None
    if row is None or lease is None or lease.epoch != epoch or lease.lost:
        raise Refused("conflict", f"the session {epoch} of agent {key.sort} has ended; enrol again")
    # One from the future is of a clock that has gone back since.
    if abs(now_ms - lease.renewed_ms) < RENEW_AFTER_MS:
        return
    body = _LEASE().dump_json(replace(lease, renewed_ms=now_ms))
    try:
        table.commit((Put(key, row.revision + 1, body, row.revision),))
    except Conflict:
        renew(table, key, table.get(key), epoch, now_ms)


def mark(leases: dict[str, Lease], brake: Brake, now_ms: int, pass_ms: int = PASS_MS) -> Marking:
    """Decides whom to mark; a pass comes each `pass_ms`. A jump of the clock, ahead or back, is a
    gap in the passes.
    """
    live = {agent: lease for agent, lease in leases.items() if not lease.lost}
    lapsed = sorted(
        agent for agent, lease in live.items() if abs(now_ms - lease.renewed_ms) > LEASE_MS
    )
    away = brake.passed_ms > 0 and abs(now_ms - brake.passed_ms) > GAP_PASSES_MAX * pass_ms
    passed = replace(brake, passed_ms=now_ms)
    paused = replace(passed, paused_until_ms=now_ms + LEASE_MS)
    if away:
        return Marking(paused)
    if now_ms < brake.paused_until_ms:
        return Marking(passed)
    together = 3 * len(lapsed) > len(live)
    if together and brake.paused_until_ms == 0:
        return Marking(paused)
    return Marking(replace(passed, paused_until_ms=0), tuple(lapsed))


def leases_in(table: StateTable, pool: str) -> dict[str, Lease]:
    """The lease of each agent that ever enrolled in the pool."""
    rows = _all(table, leases_of(pool))
    rows.pop(BRAKE, None)
    return _leases(rows)


def mark_lost(
    table: StateTable,
    pool: str,
    now_ms: int,
    follow: Callable[[tuple[str, ...]], None],
    pass_ms: int = PASS_MS,
) -> tuple[str, ...]:
    """One pass over a pool's leases, of which one comes each `pass_ms`; returns the agents
    marked.
    """
    partition = leases_of(pool)
    rows = _all(table, partition)
    kept = rows.pop(BRAKE, None)
    brake = _BRAKE().validate_json(kept.body) if kept else Brake()
    leases = _leases(rows)
    if all(lease.lost for lease in leases.values()):
        # Nobody to look after: a pool that is scaled to zero costs no writes.
        return ()
    marking = mark(leases, brake, now_ms, pass_ms)
    lost = tuple(
        agent
        for agent in marking.lost
        if _mark_one(table, pool, rows[agent], leases[agent], now_ms)
    )
    revision = kept.revision if kept else 0
    body = _BRAKE().dump_json(marking.brake)
    # Written by each pass, for the next one to see how long nobody looked. Another pass may have
    # looked meanwhile; its word is as good.
    with suppress(Conflict):
        expect = revision or Expect.ABSENT
        table.commit((Put(Key(partition, BRAKE), revision + 1, body, expect),))
    if lost:
        follow((addresses.pool(pool),))
    return lost


def forget_lost(engine: Engine, pool: str) -> tuple[str, ...]:
    """Forgets agents of a pool that were lost long ago; their names, so many as are done at once.

    The lease goes last, so that what fails before is done by a later pass.
    """
    table = engine.table
    before_ms = engine.clock() - FORGOTTEN_AFTER_MS
    rows = _all(table, leases_of(pool))
    rows.pop(BRAKE, None)
    over = {
        agent: lease.epoch
        for agent, lease in _leases(rows).items()
        if lease.lost and lease.renewed_ms < before_ms
    }
    forgotten = []
    for agent, epoch in islice(over.items(), FORGOTTEN_MAX):
        # One that has enrolled in another pool since lives on there, and one that has enrolled here
        # just now has another lease.
        if not engine.command(addresses.agent(agent), AgentForgotten(epoch)):
            continue
        with suppress(Conflict):
            table.commit((Delete(rows[agent].key, rows[agent].revision),))
            forgotten.append(agent)
    return tuple(forgotten)


def mark_ended(
    table: StateTable, pool: str, agent: str, now_ms: int, follow: Callable[[tuple[str, ...]], None]
) -> bool:
    """Marks an agent whose machine has ended for sure, so that nobody waits for its lease; whether
    it was not marked yet. Raises Conflict where it has just spoken.
    """
    row = table.get(Key(leases_of(pool), agent))
    lease = _LEASE().validate_json(row.body) if row else None
    if row is None or lease is None or lease.lost:
        return False
    if not _mark_one(table, pool, row, lease, now_ms, "its machine has ended"):
        raise Conflict(row.key)
    follow((addresses.pool(pool),))
    return True


def _mark_one(
    table: StateTable, pool: str, row: Row, lease: Lease, now_ms: int, reason: str = ""
) -> bool:
    agent = row.key.sort
    silent = f"it has not been heard of for {(now_ms - lease.renewed_ms) // 1000} s"
    message = AgentLost(agent, lease.epoch, reason or silent, lease.renewed_ms)
    to = addresses.pool(pool)
    sender = f"lease#{agent}"
    clock = mailbox.next_clock(0, now_ms)
    mail = mailbox.put_mail(
        mailbox.mail_key(to, clock, sender),
        sender,
        mailbox.FIRST,
        clock,
        [encode_for(to, message)],
        now_ms + mailbox.BACKSTOP_MS,
    )
    body = _LEASE().dump_json(replace(lease, lost=True))
    try:
        table.commit((Put(row.key, row.revision + 1, body, row.revision), mail))
    except Conflict:
        return False
    return True


def _leases(rows: dict[str, Row]) -> dict[str, Lease]:
    return {agent: _LEASE().validate_json(row.body) for agent, row in rows.items()}


def _all(table: StateTable, partition: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    first: str | None = " "
    while first is not None:
        page = table.query(partition, first, "\x7f")
        found |= {row.key.sort: row for row in page.rows}
        first = page.next_sort
    return found
