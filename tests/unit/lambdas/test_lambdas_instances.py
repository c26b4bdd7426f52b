"""Instances of an embedded cluster: their tokens, their provider, and the thread behind them."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from control_plane.api.auth import Role, StaticTokens, digest_of
from control_plane.api.token_table import TableTokens
from control_plane.dispatch.engine import Engine
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Unavailable
from lambdas.home import HomeFolder
from lambdas.local_instances import LocalInstances, issue_join_token
from lambdas.pools import PoolsFailed
from lambdas.provisioning import Provisioning, provision
from provisioner.clouds.provider import Misconfigured
from provisioner.model import Looked, ProvisionerSettings
from provisioner.settings import SettingsInvalid


def test_a_join_token_is_for_one_pool() -> None:
    table = SqliteTable(Path(":memory:"))
    for _ in range(2):
        issue_join_token(table, "secret", "blue")
    tokens = TableTokens(table, StaticTokens({}), lambda: 0)
    principal = tokens.principal(digest_of("secret"))
    assert principal is not None
    assert (principal.role, principal.subject) == (Role.JOIN, "blue")
    assert tokens.principal(digest_of("other")) is None


def test_a_provider_that_is_not_here_is_named(tmp_path: Path) -> None:
    engine = Engine(SqliteTable(Path(":memory:")), lambda: 0)
    local = LocalInstances(HomeFolder(tmp_path), engine, "c1", "http://here")
    with pytest.raises(Misconfigured, match="this cluster has no provider aws; it has local"):
        local.cloud(ProvisionerSettings("aws"))
    settings = ProvisionerSettings("local", section='{"instance_slots": 2}')
    assert [it.slots for it in local.cloud(settings).offerings()] == [2]


def test_one_pools_trouble_is_not_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    enough = threading.Event()

    class Stumbling:
        """Fails in every way that a pass may."""

        def pools(self) -> list[str]:
            if len(seen) == 2:
                seen.append("unavailable")
                raise Unavailable("no table now")
            return ["bad", "good"]

        def reconcile(self, pool: str) -> Looked:
            seen.append(pool)
            if len(seen) > 6:
                enough.set()
            if pool == "bad":
                raise SettingsInvalid("provider: must be a map")
            return Looked(("launch 1 of local",))

        def sweep(self) -> list[str]:
            raise ZeroDivisionError

    monkeypatch.setattr("lambdas.provisioning.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("lambdas.provisioning.LOOKS_PER_SWEEP", 1)
    stumbling = cast(Any, Stumbling())
    provisioning = Provisioning(stumbling, stumbling)
    provisioning.start()
    assert enough.wait(10)
    provisioning.stop()
    assert seen[:5] == ["bad", "good", "unavailable", "bad", "good"]


def test_a_pool_that_the_table_refuses_holds_up_no_other_and_is_named() -> None:
    seen: list[str] = []

    class Refused:
        def pools(self) -> list[str]:
            return ["bad", "hot", "good"]

        def reconcile(self, pool: str) -> Looked:
            seen.append(pool)
            if pool == "hot":
                raise Unavailable("throttled")
            if pool == "bad":
                raise SettingsInvalid("provider: must be a map")
            return Looked(again_ms=3_000)

    # Settings that cannot be used are their owner's to mend.
    with pytest.raises(PoolsFailed, match=r"^pools that failed: hot$"):
        provision(cast(Any, Refused()))
    assert seen == ["bad", "hot", "good"]


def test_whoever_provisions_hears_when_all_pools_can_be_looked_at_again() -> None:
    waits = {"a": 2_000, "b": 4_000, "c": 0}

    class Early:
        def pools(self) -> list[str]:
            return list(waits)

        def reconcile(self, pool: str) -> Looked:
            return Looked(again_ms=waits[pool])

    assert provision(cast(Any, Early())) == 4_000


def test_to_stop_before_the_start_is_harmless() -> None:
    nothing = cast(Any, None)
    Provisioning(nothing, nothing).stop()
