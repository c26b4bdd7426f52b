"""A reconciliation pass: launches and ends instances until a pool has the wanted number.

A pass lists the cloud's instances, resumes open launches, reads the pool's state and plans. It
commits each planned action before the cloud request, and the result after it. Each commit requires
the fleet's revision of the pass. A pass may stop at any point: the next pass repeats open launches
with their tokens, and terminations until the cloud lists the instance as ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from control_plane.actors.agent.actor import leases_partition
from control_plane.fleet.records import FleetRow, InstanceState, Offering
from control_plane.fleet.rows import CLOUDS
from control_plane.state.table import Check, Expect, Key, Put
from provisioner import offerings
from provisioner.boot_logs import BootLogs
from provisioner.clouds.provider import (
    CloudError,
    CloudInstance,
    CloudProvider,
    terminate_in_batches,
)
from provisioner.fit_types import with_refused_types
from provisioner.launcher import AttemptResult, Launcher
from provisioner.ledger import Ledger
from provisioner.model import FleetSnapshot, InstanceStatus, ProvisionerSettings, ScalePlan
from provisioner.observed_fleet import (
    find_strangers,
    instances_with_notices,
    observed_instance,
    own_end_reasons,
)
from provisioner.pass_context import PassRecord, PassServices
from provisioner.pools import PoolSnapshot
from provisioner.scale_decider import plan_scaling
from provisioner.settings import encode_settings

# Ticks run at least once a minute; a longer gap between passes is an outage of the provisioner.
GAP_MS = 150_000
# Plans in a pass: after a failed launch, the next offering is tried without a wait of PASS_MS.
ATTEMPTS_MAX = 4

_ENDING = frozenset(
    {InstanceStatus.STOPPING, InstanceStatus.TERMINATING, InstanceStatus.TERMINATED}
)
_LEAVING = frozenset({InstanceState.DRAINING, InstanceState.TERMINATING})


class ReconcilePass:
    """A pass over a pool, under the fleet's lease."""

    record: PassRecord
    """The decisions and errors of the pass, complete after `run`."""

    def __init__(
        self, services: PassServices, ledger: Ledger, settings: ProvisionerSettings
    ) -> None:
        self.record = PassRecord(services.clock())
        self._services = services
        self._ledger = ledger
        self._settings = settings
        self._launcher = Launcher(services, ledger, settings, self.record)
        self._listed: Mapping[str, CloudInstance] = {}
        self._own_end_reasons: Mapping[str, str] = {}
        self._termination_requested: set[str] = set()
        self._offered: tuple[Offering, ...] = ()
        self._boot_logs = BootLogs()

    def run(self) -> None:
        """Run the whole pass; the results are in `record`, the state table and the cloud.

        Commit changed settings, resume open launches, carry out plans and report the pool's supply.
        At the end, commit the result to the fleet's row and release the lease. All cloud errors are
        recorded, and none is raised. If the cloud cannot be created, or its instances or offerings
        cannot be read, skip the open launches, plans and report. Any other error ends the pass
        without releasing the lease, which lapses LEASE_MS after its start.

        Raises:
            Conflict: another pass took over, or an agent connected that a plan counted as
                disconnected.
            TableError: the state table fails.
            SettingsInvalid: the pool's settings became unusable.
        """
        self._record_pass_start()
        try:
            cloud = self._services.cloud_factory(self._settings)
            instances = cloud.list_instances(self._services.cluster, self._ledger.fleet.pool)
            has_instances = instances or self._ledger.instances
            notices = list(self._services.notices()) if has_instances else []
            instances = instances_with_notices(instances, notices)
            self._own_end_reasons = own_end_reasons(notices)
            self._listed = self._own_instances(instances)
            offered = offerings.offerings_with_prices(self._settings.offerings, cloud.offerings())
        except CloudError as error:
            self.record.add_trouble(error)
        else:
            for intent in list(self._ledger.intents.values()):
                self._launcher.resume(cloud, intent, self._listed.values())
            self._carry_out_plans(cloud, offered)
            self._report_supply(offered)
            self._offered = offerings.cheapest_offerings(offered)
        self._record_pass_end()

    def _own_instances(self, instances: Sequence[CloudInstance]) -> dict[str, CloudInstance]:
        """Return the listed instances by id, without other instances that have the id of a row.

        Each of the others becomes a reason of the pass.
        """
        strangers = find_strangers(instances, self._ledger.instances)
        self.record.reasons += [
            f"ignored instance {item.uid} in {item.zone}: it has the name {item.id} and labels of "
            "this cluster, which did not launch it; delete it"
            for item in strangers
        ]
        return {item.id: item for item in instances if item not in strangers}

    def _record_pass_start(self) -> None:
        """Commit the end of a gap between passes, and changed settings, to the fleet's row.

        The end of a gap sets `resumed_ms` to now (`_follows_gap`). New settings delete the health
        of all offerings, and so end all back-offs, and the memory of a refused call for several
        instances with its warning. The settings are also stored for the orphan
        cleanup, in the row of their location (cloud, project and region). Write nothing without a
        gap and with unchanged settings.

        Raises:
            Conflict: another pass took over.
            TableError: the state table fails.
        """
        fleet, now_ms = self._ledger.fleet, self.record.started_ms
        text = encode_settings(self._settings)
        after = replace(fleet, resumed_ms=now_ms) if _follows_gap(fleet, now_ms) else fleet
        location_put = None
        if text != fleet.provider:
            after = replace(after, provider=text, health={}, batch_refused_ms=0, warning="")
            key = Key(CLOUDS, self._settings.location)
            location_put = Put(key, 1, text.encode(), Expect.ANYTHING)
        self._ledger.commit(after, location_put=location_put)

    def _record_pass_end(self) -> None:
        """Commit the start, trouble and offerings of the pass to the fleet's row; end the lease.

        A pass without a cloud error clears the earlier trouble. A pass that could not read the
        cloud, or found no offering, keeps the earlier offerings.

        Raises:
            Conflict: another pass took over.
            TableError: the state table fails.
        """
        fleet = self._ledger.fleet
        self._ledger.commit(
            replace(
                fleet,
                passed_ms=self.record.started_ms,
                leased_until_ms=0,
                trouble=self.record.trouble,
                offered=self._offered or fleet.offered,
            )
        )

    def _carry_out_plans(self, cloud: CloudProvider, offered: tuple[Offering, ...]) -> None:
        """Plan, commit and act up to ATTEMPTS_MAX times, until a plan needs no successor.

        Read the pool before each plan; the cloud's list stays that of the pass. Each plan commits
        the fleet's row, new launches and changed instances, with boot logs from the cloud. Then
        drain and end agents, terminate instances, and request the launches. Another plan follows if
        a launch failed so that another offering may succeed, or if an idle agent was drained. Cloud
        errors are recorded, and the remaining steps still run.

        Raises:
            Conflict: another pass took over, or a disconnected agent of the plan has connected
                meanwhile.
            TableError: the state table fails.
            SettingsInvalid: the pool's settings became unusable.
        """
        for _ in range(ATTEMPTS_MAX):
            # The pool is read after the cloud's list, immediately before the commit.
            snapshot = self._services.pools.pool_snapshot(self._ledger.fleet.pool)
            plan = plan_scaling(self._fleet_snapshot(snapshot, offered, cloud))
            intents = self._launcher.new_intents(plan.launches)
            number = self._ledger.fleet.launches + len(intents)
            self._ledger.commit(
                replace(plan.fleet, launches=number),
                changed_rows=self._boot_logs.add_logs(
                    cloud, plan.changed_rows, self._ledger.instances, self._listed
                ),
                new_intents=intents,
                checks=_disconnection_checks(self._ledger.fleet.pool, plan, snapshot),
            )
            self.record.reasons += plan.reasons
            drained = self._drain_agents(snapshot)
            self._report_ended_agents(plan)
            self._terminate_instances(cloud, snapshot)
            results = [self._launcher.attempt(cloud, intent) for intent in intents]
            # Another plan tries other offerings, and terminates agents that were drained idle.
            if not (drained or AttemptResult.FAILED in results):
                return

    def _report_supply(self, offered: tuple[Offering, ...]) -> None:
        """Report to the pool why no offering is available, and until when (`supply_gap`).

        Report "" and 0 if an offering may be available, a launch is open or an instance starts. The
        pool shows the reason to users, and an unchanged report is not stored again. Raises
        TableError if the state cannot be read or written.
        """
        ledger = self._ledger
        starting = ledger.intents or any(
            row.state is InstanceState.STARTING for row in ledger.instances.values()
        )
        gap = offerings.supply_gap(
            self._settings, offered, ledger.fleet.health, self._services.clock()
        )
        if starting:
            gap = offerings.SupplyGap()
        self._services.pools.report_supply(ledger.fleet.pool, gap.reason, gap.until_ms)

    def _fleet_snapshot(
        self, snapshot: PoolSnapshot, offered: tuple[Offering, ...], cloud: CloudProvider
    ) -> FleetSnapshot:
        """Return the scale decider's input: the ledger, the cloud's list and the pool combined.

        The settings are those of the pass, not those of `snapshot`. Nothing is read or written.
        """
        ledger = self._ledger
        observed = {
            name: observed_instance(
                name, self._listed.get(name), snapshot, self._own_end_reasons.get(name, "")
            )
            for name in ledger.instances
        }
        return FleetSnapshot(
            settings=self._settings,
            offerings=offered,
            demand=with_refused_types(
                snapshot.demand,
                offered,
                ledger.instances.values(),
                snapshot.agents.keys(),
                cloud.devices_of,
            ),
            fleet=ledger.fleet,
            rows=tuple(ledger.instances.values()),
            observed=observed,
            pending=tuple((intent.offering, intent.count) for intent in ledger.intents.values()),
            now_ms=self._services.clock(),
            random=self._services.random.random,
            api_down=snapshot.api_down,
        )

    def _drain_agents(self, snapshot: PoolSnapshot) -> bool:
        """Drain the connected agents of leaving instances; return whether any agent was idle.

        An instance leaves if its row is DRAINING or TERMINATING, or has an interruption notice.
        With a notice, the agent is drained in each plan, and gets the time of the notice. Without a
        notice, a closed agent is skipped. The result is True if an agent without work, which was
        not closed before, was drained. Raises TableError.
        """
        drained = False
        for row in self._ledger.instances.values():
            agent = snapshot.agents.get(row.id)
            # An agent may still enrol during the termination for not enrolling. After a
            # notice, preempted work would start on the machine again without a drain.
            leaves = row.state in _LEAVING or row.notice_ms is not None
            # A drained agent also gets the notice, which the machine may not have received.
            if leaves and agent is not None and (not agent.is_closed or row.notice_ms is not None):
                self._services.pools.drain_agent(row.id, row.notice_ms)
                drained = drained or (agent.idle and not agent.is_closed)
        return drained

    def _report_ended_agents(self, plan: ScalePlan) -> None:
        """Report to the pool the agents of instances that the plan ends and that are gone.

        An instance is gone if the cloud lists it as terminated. An instance that only vanished from
        the cloud's list is not reported. Raises TableError.
        """
        for row in plan.changed_rows:
            listed = self._listed.get(row.id)
            is_gone = listed is not None and listed.status is InstanceStatus.TERMINATED
            if row.state is InstanceState.ENDED and is_gone:
                self._services.pools.end_agent(self._ledger.fleet.pool, row.id)

    def _terminate_instances(self, cloud: CloudProvider, snapshot: PoolSnapshot) -> None:
        """Ask the cloud to end TERMINATING instances that the cloud does not list as ending.

        An instance that the cloud does not list is included. Skip an instance with work: after a
        failed request, a user may have enabled the drained agent. Skip also the instances that an
        earlier call of the pass requested, even if that request failed. The first cloud error is
        recorded, not raised, and ends the requests of this call. The next pass makes the failed and
        the remaining requests.
        """
        ids = [
            row.id
            for row in self._ledger.instances.values()
            if row.state is InstanceState.TERMINATING
            and row.id not in self._termination_requested
            and not (row.id in snapshot.agents and not snapshot.agents[row.id].idle)
            and (row.id not in self._listed or self._listed[row.id].status not in _ENDING)
        ]
        self._termination_requested.update(ids)
        try:
            terminate_in_batches(cloud, ids)
        except CloudError as error:
            self.record.add_trouble(error)


def _follows_gap(fleet: FleetRow, now_ms: int) -> bool:
    """Whether a pass that starts at `now_ms` follows a time without passes, or a wrong clock.

    True if the last pass began more than GAP_MS ago, or began more than GAP_MS in the future. True
    also if the stored end of the last gap, `resumed_ms`, is in the future. The first pass of a
    fleet follows no gap.
    """
    has_gap = fleet.passed_ms > 0 and abs(now_ms - fleet.passed_ms) > GAP_MS
    # A pass with a clock ahead may have written `resumed_ms` and then stopped.
    return has_gap or fleet.resumed_ms > now_ms


def _disconnection_checks(pool: str, plan: ScalePlan, snapshot: PoolSnapshot) -> list[Check]:
    """Return conditions that the plan's disconnected agents have not connected since `snapshot`.

    Each condition expects the lease row's revision in the snapshot, or no row if the snapshot has
    no lease. Return [] if the plan ends no instance as disconnected.
    """
    return [
        Check(Key(leases_partition(pool), name), snapshot.leases.get(name, Expect.ABSENT))
        for name in plan.disconnected
    ]
