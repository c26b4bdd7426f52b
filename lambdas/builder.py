"""The builder of a cluster, which creates all parts of a cluster from the adapters of its host.

Each part is created on first use, and its modules are imported then, so that a function loads only
the parts it uses. Only `build_app` imports the API and its packages.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from control_plane.engine.engine import Engine
from lambdas.adapters import Adapters

if TYPE_CHECKING:
    from fastapi import FastAPI

    from control_plane.access.tokens import StaticTokens
    from control_plane.agents.service import AgentService
    from control_plane.alarms.watch import AlarmWatch
    from control_plane.checkpoint_gc.collector import Collector
    from control_plane.checkpoint_gc.rate_limit import DeletionRateLimiter
    from control_plane.checkpoint_gc.stores import Stores
    from control_plane.checkpoint_stores.endpoints import EndpointRule
    from control_plane.engine.experiment_reader import ExperimentReader
    from control_plane.services import Services
    from control_plane.suggestions.suggester import Suggester
    from control_plane.webhooks.deliverer import Deliverer
    from lambdas.collector_headers import CollectorHeaders
    from provisioner.orphan_cleanup import OrphanCleaner
    from provisioner.reconcile import Reconciler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provisioner:
    """The passes that launch and terminate instances."""

    reconciler: Reconciler
    """Launches and terminates the instances of pools."""
    orphan_cleaner: OrphanCleaner
    """Terminates instances of the cluster that no row of the state table mentions."""


class Cluster:
    """The parts of a cluster in a process, for example the engine and the provisioner.

    Each part is created on first use and then kept. The first use of a part raises the errors of
    the adapters that the part needs. A part that could not be created is created again at the next
    use.

    Args:
        adapters: the adapters of the cluster's host.
    """

    def __init__(self, adapters: Adapters) -> None:
        self.adapters = adapters

    @cached_property
    def engine(self) -> Engine:
        """The engine, which advances the actors."""
        return self.adapters.make_engine()

    @cached_property
    def stores(self) -> Stores:
        """The object store and the checkpoint stores, as the collector uses them."""
        from control_plane.checkpoint_gc.stores import Stores
        from control_plane.queries.cluster_configuration import next_deletion_ms

        adapters = self.adapters
        return Stores(
            self.engine,
            adapters.object_store,
            adapters.checkpoint_storage,
            self.endpoints,
            adapters.cluster_id,
            adapters.purges_versions,
            lambda after_ms: next_deletion_ms(self.engine.table, after_ms),
        )

    @cached_property
    def endpoints(self) -> EndpointRule:
        """The rule that decides which checkpoint stores of users the cluster may call.

        The rule allows every store if the adapters do not check endpoints. Otherwise each check
        reads the allowed stores from the state table, and may raise TableError.
        """
        from control_plane.checkpoint_stores.endpoints import allow_any, endpoint_rule

        def read_allowed() -> tuple[str, ...]:
            from control_plane.queries.cluster_configuration import allowed_endpoints

            return allowed_endpoints(self.engine.table)

        return endpoint_rule(read_allowed) if self.adapters.checks_endpoints else allow_any

    @cached_property
    def collector(self) -> Collector:
        """The collector, which deletes checkpoints and experiments."""
        from control_plane.checkpoint_gc.collector import Collector

        return Collector(
            self.stores, self.adapters.timing.monotonic_seconds, self.deletion_rate_limiter
        )

    @cached_property
    def deletion_rate_limiter(self) -> DeletionRateLimiter:
        """The collector's rate limiter, which reads its limit from the cluster configuration."""
        from control_plane.checkpoint_gc.rate_limit import DeletionRateLimiter
        from control_plane.queries.cluster_configuration import deletion_limit

        adapters = self.adapters
        return DeletionRateLimiter(
            lambda: deletion_limit(self.engine.table),
            adapters.timing.monotonic_seconds,
            adapters.random,
        )

    @cached_property
    def suggester(self) -> Suggester:
        """The suggester, which computes the suggestions for Bayesian searches."""
        from control_plane.suggestions.suggester import Suggester

        model = self.adapters.suggestion_model
        return Suggester(self.engine) if model is None else Suggester(self.engine, model)

    @cached_property
    def experiments(self) -> ExperimentReader:
        """The reader of trials and experiments."""
        from control_plane.engine.experiment_reader import ExperimentReader

        return ExperimentReader(self.engine)

    @cached_property
    def agents(self) -> AgentService:
        """The service that answers the calls of agents."""
        from control_plane.agents.logs import TrialLogs
        from control_plane.agents.metric_rows import store_full_segment
        from control_plane.agents.service import AgentService
        from control_plane.agents.spec import spec_builder

        adapters = self.adapters
        return AgentService(
            self.engine,
            spec_builder(adapters.cluster_id, adapters.checkpoint_storage),
            TrialLogs(self.engine.table, adapters.object_store).store_chunk,
            partial(store_full_segment, adapters.object_store),
            self.experiments,
        )

    @cached_property
    def provisioner(self) -> Provisioner:
        """The provisioner, which launches and terminates instances."""
        from provisioner.engine_pools import EnginePools
        from provisioner.orphan_cleanup import OrphanCleaner
        from provisioner.reconcile import Reconciler

        adapters, table, clock = self.adapters, self.engine.table, self.engine.clock
        cluster_id, provider = adapters.cluster_id, adapters.cloud_provider
        pools, notices = EnginePools(self.engine), adapters.instance_notices
        return Provisioner(
            Reconciler(table, pools, provider, cluster_id, clock, adapters.random, notices),
            OrphanCleaner(table, provider, cluster_id, clock),
        )

    @cached_property
    def alarm_watch(self) -> AlarmWatch:
        """The check of the cluster's alarms."""
        from control_plane.alarms.watch import AlarmWatch

        adapters = self.adapters
        return AlarmWatch(
            self.engine,
            adapters.notifier,
            adapters.cluster_id,
            adapters.runbook_url,
            adapters.cluster_url,
        )

    def check_alarms(self, late_ms: int | None) -> None:
        """Check the cluster's alarms with the thresholds of the cluster configuration.

        Raises ChecksFailed, TableError, and ValueError if the stored thresholds are not valid.

        Args:
            late_ms: the time that the oldest late message had waited; None if unknown.
        """
        from control_plane.queries.cluster_configuration import alarm_settings

        self.alarm_watch.check(alarm_settings(self.engine.table), late_ms)

    def export_telemetry(self) -> None:
        """Export spans and metrics if the host has a collector.

        Log a warning and export nothing while the headers of a deployed cluster cannot be read.
        Raises TableError.
        """
        if not self.adapters.has_collector:
            return
        from control_plane.telemetry.exports import export_telemetry
        from lambdas.collector_headers import HeadersUnavailable

        try:
            headers = self._collector_headers.read()
        except HeadersUnavailable as error:
            log.warning("no telemetry is exported: %s", error)
            return
        export_telemetry(self.services, headers)

    @cached_property
    def _collector_headers(self) -> CollectorHeaders:
        """The deployed headers of requests to the OpenTelemetry collector."""
        from lambdas.collector_headers import CollectorHeaders

        return CollectorHeaders(lambda: self.adapters.object_store)

    @cached_property
    def deliverer(self) -> Deliverer:
        """The deliverer, which sends events to the receivers of webhooks.

        Each attempt reads the allowed private hosts or the mail server from the cluster
        configuration.
        """
        from control_plane.queries.cluster_configuration import (
            allowed_private_hosts,
            smtp_settings,
        )
        from control_plane.webhooks.deliverer import Deliverer
        from control_plane.webhooks.mail import MailSender
        from control_plane.webhooks.safe_addresses import AddressRule
        from control_plane.webhooks.sender import HttpSender

        adapters, table = self.adapters, self.engine.table
        http = HttpSender(lambda: AddressRule(allowed_private_hosts(table)))
        sender = MailSender(http, lambda: smtp_settings(table), adapters.mail_service)
        return Deliverer(table, adapters.clock, sender, adapters.cluster_id, adapters.cluster_url)

    @cached_property
    def services(self) -> Services:
        """The dependencies of use cases and queries.

        Static tokens, verifiers, credentials and grants are missing: only `build_app` adds these.
        """
        from control_plane.access.tokens import StaticTokens, TableTokens
        from control_plane.services import Services
        from detcloud.shared.version import __version__

        adapters = self.adapters
        return Services(
            tokens=TableTokens(self.engine.table, StaticTokens({}), adapters.clock),
            objects=adapters.object_store,
            signer=adapters.url_signer,
            now_ms=adapters.clock,
            hosts=adapters.api_hosts,
            engine=self.engine,
            make_experiments=lambda: self.experiments,
            make_agents=lambda: self.agents,
            cluster_id=adapters.cluster_id,
            version=__version__,
            checkpoints=adapters.checkpoint_storage,
            checkpoint_remedy=adapters.checkpoint_remedy,
            long_polls=adapters.long_polls,
            providers=adapters.provider_types,
            distant_providers=adapters.distant_types,
            provider_remedy=adapters.provider_remedy,
            suggests=adapters.has_suggest_function,
            exports_spans=adapters.has_collector,
            endpoints=self.endpoints,
            has_mail_service=adapters.has_mail_service,
        )

    def build_app(self, tokens: StaticTokens) -> FastAPI:
        """Build the API as an ASGI application. No thread is started, and no row is read.

        Args:
            tokens: additional tokens that the API accepts. A token's row in the state table takes
                precedence.
        """
        from control_plane.access.tokens import TableTokens
        from control_plane.api.app import create_app

        adapters = self.adapters
        return create_app(
            replace(
                self.services,
                tokens=TableTokens(self.engine.table, tokens, adapters.clock),
                find_verifier=adapters.find_verifier,
                credential_issuer=adapters.credential_issuer,
                trial_grants=adapters.trial_grants,
                relay=adapters.relay,
                relay_remedy=adapters.relay_remedy,
            )
        )
