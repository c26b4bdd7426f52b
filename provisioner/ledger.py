"""Reads and writes of a pool's stored fleet by a single pass.

Every commit requires the fleet row's revision of the pass and increments it. If another pass has
committed since, the commit fails with Conflict and the pass discards its work. A successful commit
therefore proves that all rows were read from one state, even if the pass slept in between.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from control_plane.fleet.bills import (
    bill_total,
    decode_bill,
    encode_bill,
    instance_bill,
    split_by_month,
)
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    instances_partition,
)
from control_plane.fleet.rows import (
    FLEETS,
    decode_fleet,
    decode_instance,
    decode_intent,
    encode_row,
    instance_key,
    intents_partition,
    past_instances_partition,
)
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Check, Delete, Expect, Key, Put, StateTable, Write

LEASE_MS = 30_000
# Each changed instance costs a commit two operations; a commit has a few others.
CHANGED_ROWS_MAX = 35
# Rows of instances that ended longer ago are deleted when other instances end. The bills remain.
PAST_INSTANCE_TTL_MS = 90 * 86_400_000
EXPIRED_ROWS_MAX = 15


class Ledger:
    """The stored fleet of `pool`, updated by the writes of the pass.

    Each commit raises Conflict if another process has committed to the fleet since the rows were
    read. `fleet` is the fleet's row. `intents` are the launches in progress and `instances` the
    instances that have not ended, by id.
    """

    def __init__(self, table: StateTable, pool: str) -> None:
        """Read the fleet's row, the open launches and the instances; write nothing.

        Without a fleet's row, the fleet is new and empty, and the first commit creates the row.
        Raises TableError.
        """
        self._table = table
        row = table.get(Key(FLEETS, pool))
        self._revision = 0 if row is None else row.revision
        self._fleet_body = None if row is None else row.body
        self.fleet = FleetRow(pool) if row is None else decode_fleet(row)
        # The fleet's row is read first: if any later row is newer, no commit succeeds.
        self.intents = {
            intent.id: intent
            for intent in map(decode_intent, read_rows(table, intents_partition(pool)))
        }
        rows = list(read_rows(table, instances_partition(pool)))
        # Fields of newer versions are kept from these bodies.
        self._instance_bodies = {row.key.sort: row.body for row in rows}
        self.instances = {row.id: row for row in map(decode_instance, rows)}

    @property
    def is_empty(self) -> bool:
        """Whether the fleet has neither instances nor launches in progress."""
        return not (self.intents or self.instances)

    def acquire_lease(self, now_ms: int) -> bool:
        """Commit a lease that locks out other passes until LEASE_MS after `now_ms`; return True.

        Return False, and write nothing, if another pass held the lease when the rows were read. A
        lease that ends later than LEASE_MS from now comes from a wrong clock and is replaced.

        Raises:
            Conflict: another process has committed to the fleet since the rows were read.
            TableError: the table fails. After its subclass Unavailable, the lease may have been
                written.
        """
        if now_ms < self.fleet.leased_until_ms <= now_ms + LEASE_MS:
            return False
        self.commit(replace(self.fleet, leased_until_ms=now_ms + LEASE_MS))
        return True

    def commit(
        self,
        fleet: FleetRow,
        *,
        changed_rows: Sequence[InstanceRow] = (),
        new_intents: Sequence[IntentRow] = (),
        closed_intent: IntentRow | None = None,
        checks: Sequence[Check] = (),
        location_put: Put | None = None,
    ) -> None:
        """Write the fleet's row and all given changes, and update this ledger.

        - Without any change, write nothing; `checks` are not tested then.
        - Write up to CHANGED_ROWS_MAX instances and all other changes in one commit. Further
          instances are written before, in commits of their own, with the old fleet's row.
        - If instances ended, also add their cost to the pool's bills, and delete some expired rows
          of past instances.

        Args:
            fleet: the new row of the fleet.
            changed_rows: instance rows to write; ENDED rows move to the past instances.
            new_intents: launches to record.
            closed_intent: a launch to delete.
            checks: conditions on other rows, for the first commit only.
            location_put: the write of the provider's settings in the partition CLOUDS, where the
                orphan cleanup reads them.

        Raises:
            Conflict: another process has committed to the fleet, a condition in `checks` does not
                hold, a new intent is already stored, or `closed_intent` is not. The failed commit
                wrote nothing; earlier commits stay.
            TableError: the table fails. After its subclass Unavailable, the failed commit may have
                been written.

        After an error, this ledger contains only the changes of the earlier commits.
        """
        if fleet == self.fleet and not (
            changed_rows or new_intents or closed_intent or location_put
        ):
            return
        first: Sequence[Write] = checks
        while len(changed_rows) > CHANGED_ROWS_MAX:
            self._commit(
                self.fleet, [*first, *self._instance_writes(changed_rows[:CHANGED_ROWS_MAX])]
            )
            self._apply_to_memory(changed_rows[:CHANGED_ROWS_MAX], (), None)
            changed_rows, first = changed_rows[CHANGED_ROWS_MAX:], ()
        writes: list[Write] = [*first, *self._instance_writes(changed_rows)]
        writes += [_intent_put(intent) for intent in new_intents]
        writes += [Delete(_intent_key(closed_intent), Expect.PRESENT)] if closed_intent else []
        writes += [location_put] if location_put else []
        self._commit(fleet, writes)
        self._apply_to_memory(changed_rows, new_intents, closed_intent)

    def delete_fleet_row(self) -> None:
        """Delete the fleet's row; do nothing if this ledger has read and written no fleet row.

        The ledger is unchanged. Rows of instances and launches stay, so the caller checks that the
        fleet is empty.

        Raises:
            Conflict: another process has changed the row since. Nothing is deleted.
            TableError: the table fails.
        """
        if self._revision:
            self._table.commit((Delete(Key(FLEETS, self.fleet.pool), self._revision),))

    def _instance_writes(self, changed: Sequence[InstanceRow]) -> list[Write]:
        """Return the writes for changed instances, for a single commit; commit nothing.

        Include the pool's bills, with the cost of the ended instances added, and deletes of expired
        past instances. The present bills and the expired rows are read from the table. A bill's
        write expects the bill's present revision. Without changed instances, return [] and read
        nothing. Raises TableError.
        """
        writes = [
            write
            for row in changed
            for write in _row_writes(row, self._instance_bodies.get(row.id))
        ]
        ended = [row for row in changed if row.state is InstanceState.ENDED]
        writes += self._expired_row_deletes(ended)
        bill = bill_total(instance_bill(row, row.ended_ms or 0) for row in ended)
        for key, days in split_by_month(self.fleet.pool, bill).items():
            row = self._table.get(key)
            before = decode_bill(row.body) if row else {}
            revision = row.revision if row else 0
            body = encode_bill(bill_total([before, days]), row.body if row else None)
            writes.append(Put(key, revision + 1, body, revision or Expect.ABSENT))
        return writes

    def _expired_row_deletes(self, ended: Sequence[InstanceRow]) -> list[Write]:
        """Return deletes of past instances that ended long before `ended`; delete nothing yet.

        These instances ended more than PAST_INSTANCE_TTL_MS before the last end in `ended`, and the
        oldest come first. Return at most one delete more than the instances in `ended`, so that the
        backlog shrinks, and at most EXPIRED_ROWS_MAX. Without ended instances, return [] without a
        read. Raises TableError.
        """
        if not ended:
            return []
        before = max(row.ended_ms or 0 for row in ended) - PAST_INSTANCE_TTL_MS
        partition = past_instances_partition(self.fleet.pool)
        limit = min(len(ended) + 1, EXPIRED_ROWS_MAX)
        page = self._table.query(partition, "", f"{max(0, before):015d}", limit=limit)
        return [Delete(row.key, Expect.ANYTHING) for row in page.rows]

    def _commit(self, fleet: FleetRow, writes: Iterable[Write]) -> None:
        """Commit the fleet's row and `writes`; set `fleet` and the revision to the new row.

        `instances` and `intents` do not change: the caller applies `writes` to them. After an
        error, the ledger is unchanged.

        Raises:
            Conflict: the row's revision in the table is not the ledger's, or a condition in
                `writes` does not hold. Nothing is committed.
            TableError: the table fails. After its subclass Unavailable, the writes may have been
                committed.
        """
        expect = self._revision or Expect.ABSENT
        key = Key(FLEETS, fleet.pool)
        body = encode_row(fleet, self._fleet_body)
        self._table.commit((Put(key, self._revision + 1, body, expect), *writes))
        self._revision += 1
        self.fleet = fleet

    def _apply_to_memory(
        self,
        changed: Sequence[InstanceRow],
        intended: Sequence[IntentRow],
        closed: IntentRow | None,
    ) -> None:
        """Apply committed changes to `instances` and `intents`; remove ended instances.

        `intended` are the new intents. `closed` is the deleted intent, or None. The table and the
        fleet's row are unchanged.
        """
        for row in changed:
            self.instances[row.id] = row
            if row.state is InstanceState.ENDED:
                del self.instances[row.id]
        for intent in intended:
            self.intents[intent.id] = intent
        if closed is not None:
            del self.intents[closed.id]


def _row_writes(row: InstanceRow, before: bytes | None) -> list[Write]:
    """Return the write of an instance's row. For an ended instance, also delete the live row.

    A live row is stored by id, an ended one by the time of the end. The writes have no conditions.
    `before` is the stored body of the live row, whose unknown fields are kept; None for a new
    instance.
    """
    put = Put(instance_key(row), 1, encode_row(row, before), Expect.ANYTHING)
    if row.state is not InstanceState.ENDED:
        return [put]
    return [put, Delete(Key(instances_partition(row.pool), row.id), Expect.ANYTHING)]


def _intent_put(intent: IntentRow) -> Put:
    """Return the write that stores the record of a new launch, which must not be stored yet."""
    return Put(_intent_key(intent), 1, encode_row(intent), Expect.ABSENT)


def _intent_key(intent: IntentRow) -> Key:
    """Return the key of the row that records an open launch."""
    return Key(intents_partition(intent.pool), intent.id)
