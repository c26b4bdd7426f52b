"""A pool's fleet as it is read and written by one pass: every commit moves the fleet's revision.

So no two passes write at once, however long one of them slept: the second finds the revision
changed and drops everything. What was read is of one moment for the same reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from control_plane.fleet.bills import added, by_month, instance_bill, read_bill, written_bill
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    instances_of,
)
from control_plane.fleet.rows import (
    FLEETS,
    decode_fleet,
    decode_instance,
    decode_intent,
    encode,
    instance_key,
    intents_of,
    past_instances_of,
    read_all,
)
from control_plane.state.table import Check, Delete, Expect, Key, Put, StateTable, Write

LEASE_MS = 30_000
# Instances changed in one commit: two operations each, beside a few others.
CHANGED_MAX = 35
# Instances that ended longer ago are forgotten as others end; what they cost stays in the bills.
PAST_KEPT_MS = 90 * 86_400_000
FORGOTTEN_MAX = 15


class Ledger:
    """The fleet of `pool`. Its commits raise Conflict once somebody else has written."""

    def __init__(self, table: StateTable, pool: str) -> None:
        self._table = table
        row = table.get(Key(FLEETS, pool))
        self._revision = 0 if row is None else row.revision
        self.fleet = FleetRow(pool) if row is None else decode_fleet(row)
        # What is read after the fleet's row is at least as new, and if newer no commit succeeds.
        self.intents = {
            intent.id: intent for intent in map(decode_intent, read_all(table, intents_of(pool)))
        }
        found = read_all(table, instances_of(pool))
        self.instances = {one.id: one for one in map(decode_instance, found)}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that lives or may live."""
        return not (self.intents or self.instances)

    def lease(self, now_ms: int) -> bool:
        """Keeps others away for LEASE_MS; whether nobody else is at it. Raises Conflict."""
        if now_ms < self.fleet.leased_until_ms <= now_ms + LEASE_MS:
            return False
        self.commit(replace(self.fleet, leased_until_ms=now_ms + LEASE_MS))
        return True

    def commit(
        self,
        fleet: FleetRow,
        *,
        changed: Sequence[InstanceRow] = (),
        intended: Sequence[IntentRow] = (),
        closed: IntentRow | None = None,
        checks: Sequence[Check] = (),
        place: Put | None = None,
    ) -> None:
        """Writes all of it, in one commit unless there are very many changes: then most of these
        come before, and `checks` hold for the first commit. `place`: see rows.CLOUDS.
        """
        if fleet == self.fleet and not (changed or intended or closed or place):
            return
        first: Sequence[Write] = checks
        while len(changed) > CHANGED_MAX:
            self._commit(self.fleet, [*first, *self._changes(changed[:CHANGED_MAX])])
            self._take(changed[:CHANGED_MAX], (), None)
            changed, first = changed[CHANGED_MAX:], ()
        writes: list[Write] = [*first, *self._changes(changed)]
        writes += [_put(intent) for intent in intended]
        writes += [Delete(_intent_key(closed), Expect.PRESENT)] if closed else []
        writes += [place] if place else []
        self._commit(fleet, writes)
        self._take(changed, intended, closed)

    def forget(self) -> None:
        """Removes the fleet's row; nothing else of the fleet may be left."""
        if self._revision:
            self._table.commit((Delete(Key(FLEETS, self.fleet.pool), self._revision),))

    def _changes(self, changed: Sequence[InstanceRow]) -> list[Write]:
        """Their rows, and what those cost that end, for one commit."""
        writes = [write for row in changed for write in _writes_of(row)]
        ended = [row for row in changed if row.state is InstanceState.ENDED]
        writes += self._forgotten(ended)
        bill = added(instance_bill(row, row.ended_ms or 0) for row in ended)
        for key, days in by_month(self.fleet.pool, bill).items():
            found = self._table.get(key)
            before = read_bill(found.body) if found else {}
            revision = found.revision if found else 0
            body = written_bill(added([before, days]))
            writes.append(Put(key, revision + 1, body, revision or Expect.ABSENT))
        return writes

    def _forgotten(self, ended: Sequence[InstanceRow]) -> list[Write]:
        """One more than end now, so that what is kept comes to an end too."""
        if not ended:
            return []
        before = max(row.ended_ms or 0 for row in ended) - PAST_KEPT_MS
        partition = past_instances_of(self.fleet.pool)
        limit = min(len(ended) + 1, FORGOTTEN_MAX)
        page = self._table.query(partition, "", f"{max(0, before):015d}", limit=limit)
        return [Delete(row.key, Expect.ANYTHING) for row in page.rows]

    def _commit(self, fleet: FleetRow, writes: Iterable[Write]) -> None:
        expect = self._revision or Expect.ABSENT
        key = Key(FLEETS, fleet.pool)
        self._table.commit((Put(key, self._revision + 1, encode(fleet), expect), *writes))
        self._revision += 1
        self.fleet = fleet

    def _take(
        self,
        changed: Sequence[InstanceRow],
        intended: Sequence[IntentRow],
        closed: IntentRow | None,
    ) -> None:
        for row in changed:
            self.instances[row.id] = row
            if row.state is InstanceState.ENDED:
                del self.instances[row.id]
        for intent in intended:
            self.intents[intent.id] = intent
        if closed is not None:
            del self.intents[closed.id]


def _writes_of(row: InstanceRow) -> list[Write]:
    put = Put(instance_key(row), 1, encode(row), Expect.ANYTHING)
    if row.state is not InstanceState.ENDED:
        return [put]
    return [put, Delete(Key(instances_of(row.pool), row.id), Expect.ANYTHING)]


def _put(intent: IntentRow) -> Put:
    return Put(_intent_key(intent), 1, encode(intent), Expect.ABSENT)


def _intent_key(intent: IntentRow) -> Key:
    return Key(intents_of(intent.pool), intent.id)
