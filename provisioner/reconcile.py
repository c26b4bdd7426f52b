"""Brings the instances of pools to what they should be, in passes that may end at any point.

A pass lists the cloud, finishes the launches that an earlier one began, reads the pool's books,
decides, writes down what it is about to do, does it, and writes down what came of it. Each write
is conditional on the fleet's revision. What was written and not done is done by the next pass: a
launch is repeated with its token, a termination until the cloud says that the instance is gone.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from control_plane.actors.agent import leases_of
from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceRow,
    InstanceState,
    IntentRow,
    Offering,
    OfferingHealth,
)
from control_plane.fleet.rows import CLOUDS, fleets
from control_plane.state.table import Check, Conflict, Expect, Key, Put, StateTable
from provisioner import offerings
from provisioner.clouds.provider import (
    INTENT_TAG,
    CloudError,
    CloudInstance,
    CloudProvider,
    NoCapacity,
    OutcomeUnknown,
    Throttled,
)
from provisioner.decide import decide
from provisioner.ledger import LEASE_MS, Ledger
from provisioner.model import (
    MINUTE_MS,
    InstanceStatus,
    Launch,
    Looked,
    ProvisionerSettings,
    ScalePlan,
    Seen,
    Situation,
)
from provisioner.pools import Books, Pools
from provisioner.settings import SettingsInvalid, read_settings, written_settings

log = logging.getLogger(__name__)

PASS_MS = 5_000
# Ticks come each minute or more often; after so long a gap nobody looked.
GAP_MS = 150_000
# Offerings tried in one pass, so that a full zone does not cost 5 s.
ATTEMPTS_MAX = 4
# Well within the time for which a token is good.
INTENT_MS_MAX = 10 * MINUTE_MS
TERMINATED_AT_ONCE_MAX = 100

_ENDING = frozenset(
    {InstanceStatus.STOPPING, InstanceStatus.TERMINATING, InstanceStatus.TERMINATED}
)
_LEAVING = frozenset({InstanceState.DRAINING, InstanceState.TERMINATING})
# Answers to a repeated launch that do not tell whether an earlier one succeeded.
_SAY_NOTHING = frozenset({ErrorKind.THROTTLED, ErrorKind.AUTH, ErrorKind.UNKNOWN})

Clouds = Callable[[ProvisionerSettings], CloudProvider]
"""The provider of a pool with such settings. Raises CloudError for one that cannot be."""


class Reconciler:
    """Reconciles the pools of the cluster `cluster`. `random` draws the jitter of back-offs."""

    def __init__(
        self,
        table: StateTable,
        pools: Pools,
        clouds: Clouds,
        cluster: str,
        clock: Callable[[], int],
        random: Random,
    ) -> None:
        self._table = table
        self._pools = pools
        self._clouds = clouds
        self._cluster = cluster
        self._clock = clock
        self._random = random

    def pools(self) -> list[str]:
        """The pools to reconcile: all, and those removed that have instances left."""
        found = {*self._pools.names(), *(fleet.pool for fleet in fleets(self._table))}
        return sorted(found)

    def reconcile(self, pool: str) -> Looked:
        """One pass, unless there was one just now, somebody is at it, or there is nothing to do.
        Raises TableError, and nothing of the cloud's.
        """
        ledger = Ledger(self._table, pool)
        books = self._pools.books(pool)
        settings = _effective(books.settings, ledger)
        if settings is None:
            if ledger.is_empty:
                ledger.forget()
            return Looked()
        if not _has_work(books, settings, ledger):
            return Looked()
        now_ms = self._clock()
        age_ms = now_ms - ledger.fleet.passed_ms
        if 0 <= age_ms < PASS_MS:
            return Looked(again_ms=PASS_MS - age_ms)
        try:
            if not ledger.lease(now_ms):
                return Looked(again_ms=_leased_ms(ledger.fleet, now_ms))
            return Looked(_Pass(self, ledger, settings).run())
        except Conflict:
            log.info("pool %s: another pass was faster", pool)
            return Looked(again_ms=PASS_MS)


class _Pass:
    """One pass over one pool."""

    def __init__(
        self, reconciler: Reconciler, ledger: Ledger, settings: ProvisionerSettings
    ) -> None:
        self._by = reconciler
        self._ledger = ledger
        self._settings = settings
        self._began_ms = reconciler._clock()
        self._listed: Mapping[str, CloudInstance] = {}
        self._asked: set[str] = set()
        self._reasons: list[str] = []
        self._trouble = ""

    def run(self) -> tuple[str, ...]:
        """The whole pass. Raises Conflict when another one took over."""
        self._open()
        try:
            cloud = self._by._clouds(self._settings)
            found = cloud.list(self._by._cluster, self._ledger.fleet.pool)
            self._listed = {instance.id: instance for instance in found}
            sold = offerings.priced(self._settings.offerings, cloud.offerings())
        except CloudError as error:
            self._troubled(error)
        else:
            for intent in list(self._ledger.intents.values()):
                self._resume(cloud, intent)
            self._scale(cloud, sold)
        self._close()
        return tuple(self._reasons)

    def _open(self) -> None:
        """What has changed about the fleet since the last pass."""
        fleet, now_ms = self._ledger.fleet, self._began_ms
        text = written_settings(self._settings)
        resumed = fleet.passed_ms > 0 and abs(now_ms - fleet.passed_ms) > GAP_MS
        after = replace(fleet, resumed_ms=now_ms) if resumed else fleet
        place = None
        if text != fleet.provider:
            # What was given up under other settings is worth a try.
            after = replace(after, provider=text, health={})
            key = Key(CLOUDS, self._settings.place)
            place = Put(key, 1, text.encode(), Expect.ANYTHING)
        self._ledger.commit(after, place=place)

    def _close(self) -> None:
        fleet = self._ledger.fleet
        self._ledger.commit(
            replace(fleet, passed_ms=self._began_ms, leased_until_ms=0, trouble=self._trouble)
        )

    def _scale(self, cloud: CloudProvider, sold: tuple[Offering, ...]) -> None:
        for _ in range(ATTEMPTS_MAX):
            # Read last, so that what is decided is true when it is written.
            books = self._by._pools.books(self._ledger.fleet.pool)
            plan = decide(self._situation(books, sold))
            intents = self._intents(plan.launches)
            number = self._ledger.fleet.launches + len(intents)
            self._ledger.commit(
                replace(plan.fleet, launches=number),
                changed=plan.changed,
                intended=intents,
                checks=_unseen(self._ledger.fleet.pool, plan, books),
            )
            self._reasons += plan.reasons
            drained = self._tell(books, plan)
            self._terminate(cloud)
            failed = [self._attempt(cloud, intent) for intent in intents]
            # Another offering may do, and who was idle and takes no work any more can end.
            if not (drained or any(failed)):
                return

    def _situation(self, books: Books, sold: tuple[Offering, ...]) -> Situation:
        ledger = self._ledger
        seen = {}
        for name in ledger.instances:
            listed, agent = self._listed.get(name), books.agents.get(name)
            seen[name] = (
                Seen(None, agent)
                if listed is None
                else Seen(listed.status, agent, listed.notice_ms, listed.rebalance)
            )
        settings = self._settings
        return Situation(
            settings=settings,
            offerings=sold,
            demand=books.demand,
            fleet=ledger.fleet,
            rows=tuple(ledger.instances.values()),
            seen=seen,
            pending=tuple((it.offering, it.count) for it in ledger.intents.values()),
            now_ms=self._by._clock(),
            draw=self._by._random.random,
        )

    def _intents(self, launches: Sequence[Launch]) -> list[IntentRow]:
        """One attempt for each launch, with all that it will ever say."""
        fleet, now_ms = self._ledger.fleet, self._by._clock()
        intents = []
        for number, launch in enumerate(launches, fleet.launches + 1):
            name = f"{now_ms:x}-{number}"
            token = f"{self._by._cluster}/{fleet.pool}/{name}"
            intents.append(
                IntentRow(
                    id=name,
                    cluster=self._by._cluster,
                    pool=fleet.pool,
                    offering=launch.offering,
                    count=launch.count,
                    token=hashlib.sha256(token.encode()).hexdigest()[:40],
                    created_ms=now_ms,
                    section=self._settings.section,
                )
            )
        return intents

    def _resume(self, cloud: CloudProvider, intent: IntentRow) -> None:
        """A launch that an earlier pass began: the cloud is asked again, and at last only seen."""
        if self._began_ms - intent.created_ms <= INTENT_MS_MAX:
            self._attempt(cloud, intent, again=True)
            return
        found = [it for it in self._listed.values() if _intent_of(it) == intent.id]
        minutes = INTENT_MS_MAX // MINUTE_MS
        error = OutcomeUnknown(f"a launch was not answered for {minutes} min")
        self._record(intent, found, None if found else error)

    def _attempt(self, cloud: CloudProvider, intent: IntentRow, *, again: bool = False) -> bool:
        """Asks for the instances of an intent; whether something else is worth a try. `again`: it
        may have been asked before.
        """
        try:
            found = cloud.launch(intent)
        except CloudError as error:
            if isinstance(error, OutcomeUnknown) or (again and error.kind in _SAY_NOTHING):
                # It stays open: the next pass asks again with the same token.
                self._troubled(error)
                return False
            self._record(intent, (), error)
            return not isinstance(error, Throttled)
        self._record(intent, found, None if found else NoCapacity("the cloud launched nothing"))
        return not found

    def _record(
        self, intent: IntentRow, found: Sequence[CloudInstance], error: CloudError | None
    ) -> None:
        """Closes an intent with what came of it."""
        fleet = self._ledger.fleet
        health = fleet.health.get(intent.offering.name, offerings.FRESH)
        after = self._failed(health, error) if error else offerings.launched(health)
        if error is not None:
            kind, text = error.kind, f"no {intent.offering.name}: {error}"
            self._reasons.append(f"{text} ({kind})")
        started = [_started(intent, instance) for instance in found]
        self._ledger.commit(
            replace(fleet, health={**fleet.health, intent.offering.name: after}),
            changed=started,
            closed=intent,
        )

    def _failed(self, health: OfferingHealth, error: CloudError) -> OfferingHealth:
        failure = offerings.Failure(ErrorKind(error.kind), str(error), self._by._clock())
        limit = self._settings.launch_error_limit
        return offerings.failed(health, failure, limit, self._by._random.random)

    def _tell(self, books: Books, plan: ScalePlan) -> bool:
        """Lets agents know what was decided about them; whether an idle one was drained."""
        pools, pool = self._by._pools, self._ledger.fleet.pool
        drained = False
        for row in self._ledger.instances.values():
            agent = books.agents.get(row.id)
            # One that is to end for it never came may come in the last moment. What is preempted
            # for a notice would start there again and again until the machine is gone.
            leaves = row.state in _LEAVING or row.notice_ms is not None
            if leaves and agent is not None and agent.takes_work:
                pools.drain(row.id)
                drained = drained or agent.idle
        for row in plan.changed:
            listed = self._listed.get(row.id)
            is_gone = listed is not None and listed.status is InstanceStatus.TERMINATED
            if row.state is InstanceState.ENDED and is_gone:
                pools.ended(pool, row.id)
        return drained

    def _terminate(self, cloud: CloudProvider) -> None:
        """Asks for the end of what is to end, again and again until the cloud shows it."""
        ids = [
            row.id
            for row in self._ledger.instances.values()
            if row.state is InstanceState.TERMINATING
            and row.id not in self._asked
            and (row.id not in self._listed or self._listed[row.id].status not in _ENDING)
        ]
        self._asked.update(ids)
        try:
            for first in range(0, len(ids), TERMINATED_AT_ONCE_MAX):
                cloud.terminate(ids[first : first + TERMINATED_AT_ONCE_MAX])
        except CloudError as error:
            self._troubled(error)

    def _troubled(self, error: CloudError) -> None:
        self._trouble = f"{error.kind}: {error}"
        self._reasons.append(f"the cloud was not of use: {error}")


def _effective(settings: ProvisionerSettings | None, ledger: Ledger) -> ProvisionerSettings | None:
    """What the fleet is to be now: nothing, where the pool has another provider or none, until the
    former one's instances have gone.
    """
    text = ledger.fleet.provider
    if not text or ledger.is_empty:
        return settings
    try:
        former = read_settings(text)
    except SettingsInvalid:
        return settings
    if settings is not None and settings.place == former.place:
        return settings
    return replace(former, min_instances=0, max_instances=0)


def _has_work(books: Books, settings: ProvisionerSettings, ledger: Ledger) -> bool:
    """Whether a pass could change anything: a pool that is scaled to zero costs no writes."""
    fleet = ledger.fleet
    wants = books.demand.waits or settings.min_instances > 0
    return not ledger.is_empty or wants or bool(fleet.waits or fleet.trouble)


def _leased_ms(fleet: FleetRow, now_ms: int) -> int:
    """In how many ms to look again where somebody is at it: a pass is over by the time of the next.
    One that is not holds others up as long as its lease.
    """
    left_ms = fleet.leased_until_ms - now_ms
    next_ms = left_ms - LEASE_MS + PASS_MS
    return next_ms if next_ms > 0 else left_ms


def _unseen(pool: str, plan: ScalePlan, books: Books) -> list[Check]:
    return [
        Check(Key(leases_of(pool), name), books.leases.get(name, Expect.ABSENT))
        for name in plan.unseen
    ]


def _intent_of(instance: CloudInstance) -> str | None:
    return instance.tags.get(INTENT_TAG)


def _started(intent: IntentRow, instance: CloudInstance) -> InstanceRow:
    # By our clock, which is what its age is measured with.
    return InstanceRow(
        id=instance.id,
        pool=intent.pool,
        offering=intent.offering,
        state=InstanceState.STARTING,
        launched_ms=intent.created_ms,
        intent=intent.id,
    )
