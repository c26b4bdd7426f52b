"""Leases of agents: an agent without a call for `LEASE_MS` is lost, unless the server was down.

A pass over a pool's leases marks the agents with lapsed leases as lost. To protect healthy work
from an outage of the server, a pass pauses loss detection for one lease length in three cases:

- The time since the last pass is unusually long, or the clock jumped.
- More than a third of the leases lapsed together. This case causes one pause, not two in a row.
- The API is down for agents. When the API answers again, each agent gets a full lease to return.

During an outage, only an agent silent for `OUTAGE_MS_MAX` is marked, after two consecutive passes
found the API down. The API is probed only if a lease has lapsed.

The same commit marks the agent's lease and mails `AgentLost` to the pool. The commit conflicts if
the lease or the state of loss detection has changed. Calls of a marked session are refused until
the agent enrols again.

Instances never reuse names. To bound the state table, agents lost a day ago are forgotten.
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
from control_plane.adapters import RecordCodec
from control_plane.engine import mailbox
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.engine import Engine
from control_plane.rows import agent_rows
from control_plane.state.row_ranges import read_rows
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
"""The age from which a call renews the agent's lease."""
PASS_INTERVAL_MS = 60_000
"""The default interval of passes over the leases: one tick per minute."""
GAP_PASSES_MAX = 2.5
"""The longest normal time between two passes, in multiples of the interval."""
LOSS_DETECTION_SORT = agent_rows.LOSS_DETECTION.sort
"""The sort key of a pool's loss detection, in the partition of the leases."""
OUTAGE_MS_MAX = OUTAGE_SECONDS_MAX * 1000
"""The silence after which an agent is marked as lost even during an outage of the API."""
FORGOTTEN_AFTER_MS = 24 * 3_600_000
"""The time after its last call at which a lost agent is forgotten."""
# A function that runs a pass has a minute.
FORGOTTEN_MAX = 100
"""The agents of a pool that one pass forgets."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of an agent."""

    epoch: int
    """The epoch of the agent's session: the session's number, which each enrolment increases."""
    renewed_ms: int
    """The time of the last renewal (epoch ms)."""
    lost: bool = False
    """Whether the agent was marked as lost and must enrol again."""


@dataclass(frozen=True, slots=True)
class LossDetection:
    """The stored state of a pool's loss detection."""

    passed_ms: int = 0
    """The time of the last pass (epoch ms), 0 if the pool had no live agent then."""
    paused_until_ms: int = 0
    """The time until which no agent is marked as lost (epoch ms)."""
    for_lapses: bool = False
    """Whether the last pause began because leases lapsed together or the API was down."""
    outage: Literal["", "down", "over"] = ""
    """The phase of an API outage.

    "down": the last pass found the API down. "over": the API answers again, and agents have time to
    return.
    """


_LEASE = RecordCodec(agent_rows.LEASE, Lease)
_LOSS_DETECTION = RecordCodec(agent_rows.LOSS_DETECTION, LossDetection)


IsApiDown = Callable[[bool], bool]
"""A function that returns whether the API is down for agents.

The argument is whether all live agents of the pool have lapsed leases. A call may take seconds, so
the function is called only if a lease has lapsed.
"""


def is_never_down(is_silent: bool) -> bool:
    """Return False, for an API in the same process as the passes over the leases."""
    return False


@dataclass(frozen=True, slots=True)
class Marking:
    """The decision of a pass over a pool's leases."""

    loss_detection: LossDetection
    """The state of loss detection after the pass."""
    lost: tuple[str, ...] = field(default=())
    """The agents to mark as lost, or the agents that were marked."""


def renew_lease(table: StateTable, key: Key, row: Row | None, epoch: int, now_ms: int) -> None:
    """Renew the lease of a session if a third of the lease has passed since the last renewal.

    A renewal is a commit of its own. After a conflict, the row is read and tried again.

    Args:
        table: the state table.
        key: the key of the lease's row.
        row: the lease's row, just read; None if the agent has no lease.
        epoch: the number of the session.
        now_ms: the present time in epoch ms.

    Raises:
        CommandRefused: "conflict" if the agent has no lease, was marked as lost or has a newer
            session.
        TableError: the state table failed.
    """
    lease = _LEASE.decode(row.body) if row else None
    if row is None or lease is None or lease.epoch != epoch or lease.lost:
        raise CommandRefused(
            "conflict", f"the session {epoch} of agent {key.sort} has ended; enrol again"
        )
    # The absolute difference also renews a lease written before the clock was set back.
    if abs(now_ms - lease.renewed_ms) < RENEW_AFTER_MS:
        return
    body = _LEASE.encode(replace(lease, renewed_ms=now_ms), row.body)
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
    """Decide which agents a pass over a pool's leases marks as lost. Nothing is written.

    The lapsed agents, silent for more than LEASE_MS, are marked. Exceptions, of which the first
    that applies counts:

    - The last pass was long ago, or the clock jumped: mark none, and begin a pause of LEASE_MS.
    - A pause for another reason than an outage lasts: mark none.
    - The API is down: begin a pause. Mark agents silent for OUTAGE_MS_MAX if the previous pass
      found the API down, too.
    - The API answers again: mark none, and begin a pause.
    - The pause after an outage lasts: mark none.
    - More than a third of the agents lapsed together: mark none, and begin a pause, but not twice
      in a row.

    Args:
        leases: the pool's leases by agent. Leases of lost agents are ignored.
        loss_detection: the state that the previous pass stored.
        now_ms: the present time in epoch ms.
        pass_ms: the interval of passes in ms.
        is_api_down: checks the API; called at most once, and only if a lease has lapsed. Its errors
            are raised.
    """
    live = {agent: lease for agent, lease in leases.items() if not lease.lost}
    lapsed = sorted(
        agent for agent, lease in live.items() if abs(now_ms - lease.renewed_ms) > LEASE_MS
    )
    is_gap = (
        loss_detection.passed_ms > 0
        and abs(now_ms - loss_detection.passed_ms) > GAP_PASSES_MAX * pass_ms
    )
    paused = LossDetection(now_ms, now_ms + LEASE_MS)
    if is_gap:
        return Marking(replace(paused, outage="over" if loss_detection.outage else ""))
    is_paused = now_ms < loss_detection.paused_until_ms
    if is_paused and not loss_detection.outage:
        return Marking(replace(loss_detection, passed_ms=now_ms))
    if lapsed and is_api_down(len(lapsed) == len(live)):
        # After OUTAGE_MS_MAX nobody can tell whether the agent is alive. Unless the previous pass
        # also found the API down, a jump of the clock may only simulate the silence.
        was_down = loss_detection.outage == "down"
        silent_too_long = [
            name
            for name in lapsed
            if was_down and abs(now_ms - live[name].renewed_ms) > OUTAGE_MS_MAX
        ]
        return Marking(replace(paused, for_lapses=True, outage="down"), tuple(silent_too_long))
    if lapsed and loss_detection.outage == "down":
        return Marking(replace(paused, for_lapses=True, outage="over"))
    if is_paused:
        return Marking(replace(loss_detection, passed_ms=now_ms))
    lapsed_together = 3 * len(lapsed) > len(live)
    if lapsed_together and not loss_detection.for_lapses:
        return Marking(replace(paused, for_lapses=True))
    return Marking(LossDetection(now_ms), tuple(lapsed))


def holds_for_outage(row: Row | None) -> bool:
    """Return whether a pool's loss detection is paused because of an outage of the API.

    False for a pool without stored state. Raises ValueError if the stored state cannot be decoded.

    Args:
        row: the stored state of loss detection, None if never stored.
    """
    return row is not None and _LOSS_DETECTION.decode(row.body).outage != ""


def is_live_lease(row: Row) -> bool:
    """Return whether the agent of a stored lease has not been marked as lost.

    The lease may have lapsed. Raises ValueError for an invalid body.
    """
    return not _LEASE.decode(row.body).lost


def read_leases(table: StateTable, pool: str) -> dict[str, Lease]:
    """Read the leases of a pool by agent, including lost agents that are not forgotten yet.

    Return {} for an unknown pool. Raises TableError.
    """
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
    """Run a pass over a pool's leases: mark agents as lost and mail `AgentLost` to the pool.

    Each agent is marked by a commit of its own. An agent whose lease changed meanwhile is skipped.
    Then store the new state of loss detection, unless a concurrent pass has stored another. Return
    the agents that were marked, and the new state. If the pool has no live agent, only reset the
    state and call neither `is_api_down` nor `follow`.

    Args:
        table: the state table.
        pool: the name of the pool.
        now_ms: the present time in epoch ms.
        follow: advances the actors at these addresses; called with the pool's address if an agent
            was marked.
        pass_ms: the interval of passes in ms.
        is_api_down: checks the API; called only if a lease has lapsed.

    Raises:
        TableError: the state table failed. Some agents may be marked already.
        Exception: any error of `follow` or `is_api_down`.
    """
    partition = leases_partition(pool)
    rows = _read_partition(table, partition)
    loss_detection_row = rows.pop(LOSS_DETECTION_SORT, None)
    loss_detection = (
        _LOSS_DETECTION.decode(loss_detection_row.body) if loss_detection_row else LossDetection()
    )
    leases = _decode_leases(rows)
    if all(lease.lost for lease in leases.values()):
        # The first pass over a pool without live agents resets the row; later passes write nothing.
        if loss_detection != LossDetection():
            _write_loss_detection(table, partition, loss_detection_row, LossDetection())
        return Marking(LossDetection())
    marking = decide_marking(leases, loss_detection, now_ms, pass_ms, is_api_down)
    # A concurrent pass may have found the API down and written a pause.
    unchanged = Check(
        Key(partition, LOSS_DETECTION_SORT),
        loss_detection_row.revision if loss_detection_row else Expect.ABSENT,
    )
    lost = tuple(
        agent
        for agent in marking.lost
        if _mark_agent_lost(
            table, pool, rows[agent], leases[agent], now_ms, loss_detection=unchanged
        )
    )
    # The next pass detects a gap by the time that this pass writes.
    _write_loss_detection(table, partition, loss_detection_row, marking.loss_detection)
    if lost:
        follow((addresses.pool(pool),))
    return replace(marking, lost=lost)


def _write_loss_detection(
    table: StateTable, partition: str, row: Row | None, loss_detection: LossDetection
) -> None:
    """Write the state of a pool's loss detection in place of `row`, as read; None without a row.

    On a conflict, write nothing: a concurrent pass has stored an equally valid state. Raises other
    TableErrors.
    """
    revision = row.revision if row else 0
    body = _LOSS_DETECTION.encode(loss_detection, row.body if row else None)
    expect = revision or Expect.ABSENT
    with suppress(Conflict):
        table.commit((Put(Key(partition, LOSS_DETECTION_SORT), revision + 1, body, expect),))


def forget_lost_agents(engine: Engine, pool: str) -> tuple[str, ...]:
    """Delete the records of agents lost `FORGOTTEN_AFTER_MS` ago, and return the forgotten agents.

    The records are the agent's pool, session and token of the lost session, and the lease. At most
    `FORGOTTEN_MAX` agents are forgotten. The lease is deleted last, so that a later pass repeats a
    failed deletion. Of an agent that enrolled again, only the old lease is deleted. An agent whose
    lease changed meanwhile is not in the result.

    Raises:
        CommandRefused: an agent's actor does not exist or is too busy. Earlier agents are
            forgotten.
        TableError: the state table failed.
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
        # The actor keeps the new session of an agent that enrolled again. Only the old lease is
        # deleted then: a new lease in this pool has another revision, so the deletion conflicts.
        if not engine.execute_command(addresses.agent(agent), AgentForgotten(epoch)):
            continue
        with suppress(Conflict):
            table.commit((Delete(rows[agent].key, rows[agent].revision),))
            forgotten.append(agent)
    return tuple(forgotten)


def mark_ended_agent(
    table: StateTable, pool: str, agent: str, now_ms: int, follow: Callable[[tuple[str, ...]], None]
) -> bool:
    """Mark an agent as lost before the lease lapses, and mail `AgentLost` to the pool.

    The caller knows that the machine has ended. Return True if the agent was marked. Return False
    if the agent has no lease or was already marked.

    Args:
        table: the state table.
        pool: the name of the pool.
        agent: the agent's id.
        now_ms: the present time in epoch ms.
        follow: advances the actors at these addresses; called with the pool's address if the agent
            was marked.

    Raises:
        Conflict: the agent's lease changed meanwhile, because the agent has just called.
        TableError: the state table failed.
        Exception: any error of `follow`.
    """
    row = table.get(Key(leases_partition(pool), agent))
    lease = _LEASE.decode(row.body) if row else None
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
    """Mark every agent of a pool as lost, and mail an `AgentLost` for each agent to the pool.

    Return the newly marked agents, sorted by name; () without live agents. An agent with a lease
    that changes meanwhile is skipped. Each agent is marked by a commit of its own.

    Args:
        table: the state table.
        pool: the name of the pool.
        now_ms: the present time in epoch ms.
        follow: advances the actors at these addresses; called with the pool's address if an agent
            was marked.
        reason: a text for users.

    Raises:
        TableError: the state table failed. Some agents may be marked already.
        Exception: any error of `follow`.
    """
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
    """Mark a lease as lost and mail `AgentLost` to the pool, in a single commit. Return True.

    Return False, without a change, if the lease or the state of loss detection has changed. The
    caller advances the pool. Raises other TableErrors.

    Args:
        table: the state table.
        pool: the name of the pool.
        row: the lease's row, as read.
        lease: the decoded row.
        now_ms: the present time in epoch ms.
        reason: a text for users. Empty for a text about the agent's silence.
        loss_detection: the condition that loss detection's row is unchanged. None for no condition.
    """
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
    body = _LEASE.encode(replace(lease, lost=True), row.body)
    try:
        put = Put(row.key, row.revision + 1, body, row.revision)
        table.commit((put, mail, *([loss_detection] if loss_detection is not None else [])))
    except Conflict:
        return False
    return True


def _decode_leases(rows: dict[str, Row]) -> dict[str, Lease]:
    """Decode the rows of leases, by agent. Raises ValueError for an invalid body."""
    return {agent: _LEASE.decode(row.body) for agent, row in rows.items()}


def _read_partition(table: StateTable, partition: str) -> dict[str, Row]:
    """Read all rows of a partition, by sort key. Raises TableError."""
    return {row.key.sort: row for row in read_rows(table, partition)}
