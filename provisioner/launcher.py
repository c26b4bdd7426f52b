"""The launches of a pass: new intents, requests to the cloud, and the results.

An intent is stored before the cloud is asked. An intent whose outcome is unknown stays stored, and
the next pass repeats the request with the intent's token.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto

from control_plane.fleet.records import (
    ErrorKind,
    InstanceRow,
    InstanceState,
    IntentRow,
    OfferingHealth,
)
from provisioner import offerings
from provisioner.clouds.provider import (
    INTENT_TAG,
    BatchRefused,
    CloudError,
    CloudInstance,
    CloudProvider,
    LaunchUnderWay,
    NoCapacity,
    OutcomeUnknown,
    ThrottlingError,
)
from provisioner.ledger import Ledger
from provisioner.model import MINUTE_MS, Launch, ProvisionerSettings
from provisioner.pass_context import PassRecord, PassServices

# A launch is repeated for this time, which is much shorter than the validity of the token.
INTENT_MS_MAX = 10 * MINUTE_MS

# After this time, a refused call for several instances is tried again, once.
BATCH_REFUSED_MS = 24 * 60 * MINUTE_MS

# Errors of a repeated launch that leave open whether an earlier attempt succeeded.
_INCONCLUSIVE_KINDS = frozenset({ErrorKind.THROTTLED, ErrorKind.AUTH, ErrorKind.UNKNOWN})


log = logging.getLogger(__name__)


class AttemptResult(Enum):
    """The result of a launch attempt."""

    LAUNCHED = auto()
    """At least one instance was launched and recorded, and the launch is closed."""
    FAILED = auto()
    """Nothing was launched, and the launch is closed. Another offering may succeed."""
    THROTTLED = auto()
    """As FAILED, but the cloud refuses further requests for now."""
    OPEN = auto()
    """The outcome is unknown, or the launch is in progress. The next pass repeats the request."""


class Launcher:
    """The launches of a pass over a pool, under the fleet's lease."""

    def __init__(
        self,
        services: PassServices,
        ledger: Ledger,
        settings: ProvisionerSettings,
        record: PassRecord,
    ) -> None:
        self._services = services
        self._ledger = ledger
        self._settings = settings
        self._record = record

    def new_intents(self, launches: Sequence[Launch]) -> list[IntentRow]:
        """Build an intent, the record of an open launch, for each launch; store nothing.

        The id is the time and the number of the launch, counted from the fleet's `launches`, which
        stays unchanged. The token, by which a cloud recognizes a repeated request, is a hash of
        cluster, pool and id. The intents are `singly` until BATCH_REFUSED_MS after the cloud has
        refused a call for several instances. Return [] without launches.
        """
        fleet, now_ms = self._ledger.fleet, self._services.clock()
        singly = 0 <= now_ms - fleet.batch_refused_ms < BATCH_REFUSED_MS
        intents = []
        for number, launch in enumerate(launches, fleet.launches + 1):
            name = f"{now_ms:x}-{number}"
            token = f"{self._services.cluster}/{fleet.pool}/{name}"
            intents.append(
                IntentRow(
                    id=name,
                    cluster=self._services.cluster,
                    pool=fleet.pool,
                    offering=launch.offering,
                    count=launch.count,
                    token=hashlib.sha256(token.encode()).hexdigest()[:40],
                    created_ms=now_ms,
                    section=self._settings.section,
                    together=launch.together,
                    zone=launch.zone,
                    singly=singly,
                )
            )
        return intents

    def resume(
        self, cloud: CloudProvider, intent: IntentRow, listed: Iterable[CloudInstance]
    ) -> None:
        """Request an open launch again, up to the age of INTENT_MS_MAX; else close the launch.

        `intent` is the launch's stored record.

        - Up to INTENT_MS_MAX, request the launch once more (`attempt` with `again`). Success and a
          definite error commit the instances' rows and the offering's health, and delete the
          intent. If the outcome stays unknown, the intent stays for the next pass, and the
          offering's health is unchanged. Throttling, missing credentials and unknown errors also
          leave the outcome unknown.
        - Later, delete the intent without a request. Store rows for the instances in `listed` that
          have the intent's tag, as after a success. Without tagged instances, count an error of
          unknown kind against the offering.

        Cloud errors are recorded in the pass and not raised.

        Raises:
            Conflict: another pass took over.
            TableError: the state table fails.
        """
        if self._record.started_ms - intent.created_ms <= INTENT_MS_MAX:
            self.attempt(cloud, intent, again=True)
            return
        launched = [instance for instance in listed if instance.tags.get(INTENT_TAG) == intent.id]
        minutes = INTENT_MS_MAX // MINUTE_MS
        error = OutcomeUnknown(f"a launch got no response for {minutes} min")
        self._close_intent(intent, launched, None if launched else error)

    def attempt(
        self, cloud: CloudProvider, intent: IntentRow, *, again: bool = False
    ) -> AttemptResult:
        """Request the launch of an intent, the stored record of an open launch, from the cloud.

        - LAUNCHED: commit the instances as STARTING rows and the offering's new health, and delete
          the intent.
        - FAILED, after a definite error, or without an error and an instance: commit the offering's
          health with a back-off, and delete the intent.
        - FAILED, after the refusal of a call for several instances (BatchRefused): commit the
          refusal and a warning for users, and delete the intent. The offering's health stays, so
          that the next plan launches singly at once.
        - THROTTLED, after throttling: the same writes as after a definite error.
        - OPEN, without a definite response: commit nothing. The intent stays.

        Cloud errors are recorded in the pass and not raised. A launch in progress sets
        `has_launch_under_way` of the record.

        Args:
            cloud: the cloud of the pool.
            intent: the stored intent.
            again: an earlier pass may have requested the launch. Then throttling, missing
                credentials and unknown errors leave the outcome unknown, so the result is OPEN.

        Raises:
            Conflict: another pass took over.
            TableError: the state table fails.
        """
        try:
            launched = cloud.launch(intent)
        except CloudError as error:
            if isinstance(error, OutcomeUnknown) or (again and error.kind in _INCONCLUSIVE_KINDS):
                # The next pass repeats the request with the intent's token.
                self._record_open_launch(intent, error)
                return AttemptResult.OPEN
            if isinstance(error, BatchRefused):
                self._record_batch_refusal(intent, error)
                return AttemptResult.FAILED
            self._close_intent(intent, (), error)
            is_throttled = isinstance(error, ThrottlingError)
            return AttemptResult.THROTTLED if is_throttled else AttemptResult.FAILED
        shortage = None if launched else NoCapacity("the cloud launched no instance")
        self._close_intent(intent, launched, shortage)
        return AttemptResult.LAUNCHED if launched else AttemptResult.FAILED

    def _record_open_launch(self, intent: IntentRow, error: CloudError) -> None:
        """Record in the pass why a launch stays open; store nothing.

        The error is appended to the pass's reasons. In addition, a launch in progress
        (LaunchUnderWay) sets `has_launch_under_way`, and any other error counts as the trouble of
        the pass (`add_trouble`).
        """
        if isinstance(error, LaunchUnderWay):
            self._record.has_launch_under_way = True
            self._record.reasons.append(f"{intent.offering.name} is in progress: {error}")
        else:
            self._record.add_trouble(error)

    def _record_batch_refusal(self, intent: IntentRow, error: BatchRefused) -> None:
        """Commit that the pool launches singly for BATCH_REFUSED_MS, and delete the intent.

        The warning for users is stored in the fleet's row and logged.

        Raises:
            Conflict: another pass took over.
            TableError: the state table fails.
        """
        hours = BATCH_REFUSED_MS // (60 * MINUTE_MS)
        warning = (
            "the cloud refuses calls that launch several instances, so the pool launches each "
            f"instance by a call of its own for {hours} h: {error}"
        )
        log.warning("pool %s: %s", intent.pool, warning)
        self._record.reasons.append(warning)
        now_ms = self._services.clock()
        fleet = replace(self._ledger.fleet, batch_refused_ms=now_ms, warning=warning)
        self._ledger.commit(fleet, closed_intent=intent)

    def _close_intent(
        self, intent: IntentRow, launched: Sequence[CloudInstance], error: CloudError | None
    ) -> None:
        """Commit the launched instances and the offering's new health, and delete the intent.

        The intent is the record of the open launch. The instances' state is STARTING. `error` is
        the reason why no instance was launched, or None after success. An error is counted in the
        health, with a back-off, and appended to the reasons of the pass.

        Raises:
            Conflict: another pass took over.
            TableError: the state table fails.
        """
        fleet = self._ledger.fleet
        health = fleet.health.get(intent.offering.name, offerings.FRESH)
        after = (
            self._health_after_error(health, error)
            if error
            else offerings.health_after_launch(health, self._services.clock())
        )
        if error is not None:
            self._record.reasons.append(f"no {intent.offering.name}: {error} ({error.kind})")
        started = [_starting_row(intent, instance) for instance in launched]
        if launched and not intent.singly:
            # A call for several instances has succeeded, perhaps after a refusal.
            fleet = replace(fleet, batch_refused_ms=0, warning="")
        self._ledger.commit(
            replace(fleet, health={**fleet.health, intent.offering.name: after}),
            changed_rows=started,
            closed_intent=intent,
        )

    def _health_after_error(self, health: OfferingHealth, error: CloudError) -> OfferingHealth:
        """Return an offering's health after a launch failed with `error` now; store nothing.

        The back-off is partly random, and `launch_error_limit` of the settings applies.
        """
        failure = offerings.Failure(ErrorKind(error.kind), str(error), self._services.clock())
        limit = self._settings.launch_error_limit
        return offerings.health_after_failure(health, failure, limit, self._services.random.random)


def _starting_row(intent: IntentRow, instance: CloudInstance) -> InstanceRow:
    """Return the STARTING row of a launched instance, with the intent's time as the launch time.

    The zone and the number are the instance's. The instance's status, tags and notice are ignored.
    """
    return InstanceRow(
        id=instance.id,
        pool=intent.pool,
        offering=intent.offering,
        state=InstanceState.STARTING,
        launched_ms=intent.created_ms,
        intent=intent.id,
        zone=instance.zone,
        uid=instance.uid,
    )
