"""Mutants of commits: a table that drops families of conditions from every commit."""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from control_plane.actors.agent.actor import SESSIONS
from control_plane.engine.head import HEAD
from control_plane.engine.mailbox import MAIL, TIMERS
from control_plane.state.table import Delete, Expect, Put, StateTable, Write
from simulator.faults.table_faults import TableDecorator


class Family(Enum):
    """The families of conditions. Each value is the rule that the conditions guard."""

    HEAD = "the head of an actor is at the revision that was read"
    BIRTH = "a new actor does not exist yet"
    NO_ACTOR = "an actor still does not exist when its mail is dropped"
    CONSUMED = "a folded message still exists"
    NEW_MAIL = "no message has the id of a new one"
    GUARD = "a row outside the actor, on which a step depends, is unchanged"
    SESSION = "an agent's session is at the revision that was read"
    LEASE = "a lease is at the revision that was read"
    ATTEMPTS = "a message is unchanged when its attempts are raised"
    EXPIRY = "an expired row was not prolonged"
    BESIDE = "no command ran under the idempotency key"


class WithoutCondition(TableDecorator):
    """A table that drops the conditions of some families from every commit."""

    def __init__(self, table: StateTable, families: frozenset[Family]) -> None:
        super().__init__(table)
        self._families = families

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit `writes` without the conditions of the families."""
        by_actor = any(write.key.sort == HEAD and isinstance(write, Put) for write in writes)
        kept = [self._without_condition(write, by_actor) for write in writes]
        self.table.commit(kept)

    def _without_condition(self, write: Write, by_actor: bool) -> Write:
        if family_of(write, by_actor) not in self._families:
            return write
        return replace(write, expect=Expect.ANYTHING)


def family_of(write: Write, by_actor: bool) -> Family | None:
    """Return the family of a write's condition, or None without a known condition.

    `by_actor`: the commit also puts the head of an actor.
    """
    partition, sort = write.key
    if write.expect is Expect.ANYTHING:
        return None
    if sort == HEAD:
        return _head_family(write)
    if sort.startswith((MAIL, TIMERS)):
        return _mail_family(write)
    if partition.startswith("idempotency#"):
        return Family.BESIDE if isinstance(write, Put) else Family.EXPIRY
    if by_actor and isinstance(write, Put):
        return Family.GUARD
    return _other_family(partition)


def _head_family(write: Write) -> Family:
    if not isinstance(write, Put):
        return Family.NO_ACTOR
    return Family.BIRTH if write.expect is Expect.ABSENT else Family.HEAD


def _mail_family(write: Write) -> Family:
    if isinstance(write, Delete):
        return Family.CONSUMED
    return Family.NEW_MAIL if write.expect is Expect.ABSENT else Family.ATTEMPTS


def _other_family(partition: str) -> Family | None:
    if partition == SESSIONS:
        return Family.SESSION
    return Family.LEASE if partition.startswith("leases#") else None
