"""Tests of instances of an embedded cluster: join tokens, providers and the provisioner thread."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from control_plane.access.principals import Role
from control_plane.access.tokens import StaticTokens, TableTokens, token_digest
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Unavailable
from lambdas.builder import Provisioner
from local_cluster.adapters import LocalAdapters
from local_cluster.home import HomeFolder
from local_cluster.instances import issue_join_token
from local_cluster.provisioning_thread import ProvisioningThread
from provisioner.clouds.provider import ConfigurationError
from provisioner.model import PassResult, ProvisionerSettings
from provisioner.reconcile import Reconciler
from provisioner.settings import SettingsInvalid
from tests.patience import ANSWER_SECONDS_MAX


def test_join_token_is_bound_to_a_pool() -> None:
    table = SqliteTable(Path(":memory:"))
    for _ in range(2):
        issue_join_token(table, "secret", "blue")
    tokens = TableTokens(table, StaticTokens({}), lambda: 0)
    principal = tokens.find_principal(token_digest("secret"))
    assert principal is not None
    assert (principal.role, principal.subject) == (Role.JOIN, "blue")
    assert tokens.find_principal(token_digest("other")) is None


def test_rejects_missing_provider_by_name(tmp_path: Path) -> None:
    adapters = LocalAdapters(HomeFolder(tmp_path), "http://here")
    with pytest.raises(ConfigurationError, match="this cluster has no provider aws; it has local"):
        adapters.cloud_provider(ProvisionerSettings("aws"))
    settings = ProvisionerSettings("local", section='{"instance_slots": 2}')
    assert [offering.slots for offering in adapters.cloud_provider(settings).offerings()] == [2]


def test_failing_pool_does_not_stop_passes_of_healthy_pools() -> None:
    seen: list[str] = []
    enough = threading.Event()

    class Stumbling(Reconciler):
        """A reconciler that fails in every way of a pass."""

        def __init__(self) -> None:
            pass

        def pools_to_reconcile(self) -> list[str]:
            if len(seen) == 2:
                seen.append("unavailable")
                raise Unavailable("no table now")
            return ["bad", "good"]

        def reconcile(self, pool: str) -> PassResult:
            seen.append(pool)
            if len(seen) > 6:
                enough.set()
            if pool == "bad":
                raise SettingsInvalid("provider: must be a map")
            return PassResult(("launch 1 of local",))

        def terminate_orphans(self) -> list[str]:
            raise ZeroDivisionError

    stumbling = cast(Any, Stumbling())
    provisioning = ProvisioningThread(Provisioner(stumbling, stumbling), 0.001, 1)
    provisioning.start()
    assert enough.wait(ANSWER_SECONDS_MAX)
    provisioning.stop()
    assert seen[:5] == ["bad", "good", "unavailable", "bad", "good"]


def test_stop_before_start_is_harmless() -> None:
    nothing = cast(Any, None)
    ProvisioningThread(Provisioner(nothing, nothing)).stop()
