"""Mutants of the whole system: each takes one condition, fence, intent or look away, and names the
faults under which a world must notice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from control_plane.agents import desired, service
from control_plane.dispatch import due, engine, mailbox
from control_plane.state.faults import TableDecorator
from control_plane.state.table import Expect, Put, Row, StateTable, Write
from lambdas.simulation import world as worlds
from lambdas.simulation.chances import NONE, Chances
from lambdas.simulation.watch import Shadow, WatchedTable
from lambdas.simulation.world import Size
from provisioner import reconcile
from provisioner.clouds.provider import CloudProvider
from tests.simulation.conditions import Family, WithoutCondition

Patch = Callable[[pytest.MonkeyPatch], None]


SMALL = Size(experiments=2, pools=1, machines_max=2, hours=1.0)


@dataclass(frozen=True)
class Mutant:
    """`takes_away` something; under `chances` a world breaks, in words that match `seen`."""

    name: str
    takes_away: Patch
    chances: Chances
    seen: str = ""
    size: Size = SMALL


def without_family(*families: Family) -> Patch:
    """Commits without some conditions."""
    return _beneath(lambda table: WithoutCondition(table, frozenset(families)))


def without_conditions_on(*partitions: str) -> Patch:
    """Commits without the conditions on rows of partitions that begin like these."""
    return _beneath(lambda table: _Unconditional(table, partitions))


def patched(target: object, name: str, value: object) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(target, name, value)


def both(*patches: Patch) -> Patch:
    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        for patch in patches:
            patch(monkeypatch)

    return apply


def with_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch has the same token, wherever it is to be."""
    intended = reconcile._Pass._intents

    def same(self: Any, launches: Any) -> Any:
        return [replace(intent, token="token") for intent in intended(self, launches)]

    monkeypatch.setattr(reconcile._Pass, "_intents", same)


def with_a_new_token_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that was not answered is asked for with another token."""
    numbers = iter(range(10**6))

    class Renaming:
        def __init__(self, cloud: CloudProvider) -> None:
            self._cloud = cloud

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cloud, name)

        def launch(self, request: Any) -> Any:
            return self._cloud.launch(replace(request, token=f"{next(numbers)}"))

    attempted = reconcile._Pass._attempt

    def renamed(self: Any, cloud: CloudProvider, intent: Any, **named: Any) -> bool:
        return attempted(self, Renaming(cloud), intent, **named)

    monkeypatch.setattr(reconcile._Pass, "_attempt", renamed)


def blind_to_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches under way do not count."""
    seen = reconcile._Pass._situation
    monkeypatch.setattr(
        reconcile._Pass, "_situation", lambda *given: replace(seen(*given), pending=())
    )


def _beneath(made: Callable[[StateTable], StateTable]) -> Patch:
    def table(rows: StateTable, shadow: Shadow) -> StateTable:
        return made(WatchedTable(rows, shadow))

    return patched(worlds, "WatchedTable", table)


class _Unconditional(TableDecorator):
    def __init__(self, table: StateTable, partitions: tuple[str, ...]) -> None:
        super().__init__(table)
        self._partitions = partitions

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        kept = [
            replace(write, expect=Expect.ANYTHING)
            if write.key.partition.startswith(self._partitions)
            else write
            for write in writes
        ]
        self.table.commit(kept)


# What a message lost on its way would be about; the audit finds what it did not bring about.
AUDITED = (
    "SlotsReleased",
    "AgentJoined",
    "AgentLost",
    "AllocationPlaced",
    "AllocationRemoved",
    "JobChanged",
)
LOST_SHARE = 0.05


class ForgetfulTable(TableDecorator):
    """Loses some mail to pools and agents, which the engine never does."""

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self._random = Random(1)

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        kept = [write for write in writes if not self._is_lost(write)]
        if kept:
            self.table.commit(kept)

    def _is_lost(self, write: Write) -> bool:
        if not isinstance(write, Put) or not write.key.sort.startswith(mailbox.MAIL):
            return False
        names = {name for name, _ in mailbox.read_mail(row_of(write)).messages}
        return names.issubset(AUDITED) and self._random.random() < LOST_SHARE


def row_of(put: Put) -> Row:
    return Row(put.key, put.revision, put.body, put.due_ms)


def nothing(*given: object) -> None:
    """Instead of what is taken away."""


forgetting = _beneath(ForgetfulTable)
unaudited = patched(worlds, "audit", nothing)
unswept = patched(worlds.World, "_swept", nothing)

RACING = replace(NONE, races=0.15, duplicates=0.05, reordering=0.1, crashes=0.01)
STORMY = replace(NONE, races=0.5, lost_triggers=0.4, duplicates=0.2, torn_queries=0.5)
LATE = replace(NONE, reordering=0.3, duplicates=0.3, agent_restarts_hourly=10.0, lost_calls=0.1)
LOST = replace(NONE, zombies_hourly=6.0, agent_restarts_hourly=8.0, lost_calls=0.1)
SILENT = replace(NONE, lost_triggers=0.4)
HEAVY = replace(SILENT, out_of_memory=0.6)
CLOUDY = replace(NONE, no_capacity=0.3, lost_calls=0.4, replayed_tokens=0.8, crashes=0.02)
SOLD_OUT = replace(CLOUDY, no_capacity=0.6)
CROWDED_SKY = replace(
    CLOUDY,
    races=0.9,
    reordering=0.6,
    dead_boots=0.6,
    notices_hourly=20.0,
    losses_hourly=10.0,
)
MANY = Size(experiments=4, pools=1, machines_max=6, hours=1.0)
TOGETHER = Size(experiments=6, pools=1, machines_max=2, hours=0.02)

MUTANTS = (
    Mutant("no condition on heads", without_family(Family.HEAD), RACING, "skips a revision"),
    Mutant("no condition on births", without_family(Family.BIRTH), RACING, "skips a revision"),
    Mutant("no condition on attempts", without_family(Family.ATTEMPTS), STORMY, "folds"),
    Mutant("no condition on sessions", without_family(Family.SESSION), replace(LATE, races=0.3)),
    Mutant("no guards", without_family(Family.GUARD), STORMY, size=TOGETHER),
    Mutant(
        "no condition on fleets",
        without_conditions_on("fleets"),
        CROWDED_SKY,
        "it may have|belongs to another request",
        size=MANY,
    ),
    Mutant("no fence of leases", patched(service, "renew", nothing), LOST),
    Mutant("no fence of slots", patched(desired, "_is_crowded", nothing), LOST, "on slots of"),
    Mutant("no look at what is due", patched(due, "drive", nothing), SILENT, "never at rest"),
    Mutant(
        "no fold of one row alone",
        both(patched(due, "ALONE_FROM", 99), patched(engine, "ALONE_FROM", 99)),
        HEAVY,
    ),
    Mutant("no audit", both(forgetting, unaudited), NONE),
    Mutant("no token of its own", with_one_token, CLOUDY, "belongs to another request"),
    Mutant("no launches under way", blind_to_what_is_asked_for, CLOUDY, "it may have"),
    Mutant("no sweep", unswept, SOLD_OUT, "is nobody's"),
    Mutant(
        "no frozen token and no sweep",
        both(with_a_new_token_each_time, unswept),
        CLOUDY,
        "is nobody's",
    ),
)
CONTROLS = (
    Mutant("an audit", forgetting, NONE),
    *(
        Mutant(name, nothing, chances, size=size)
        for name, chances, size in (
            ("racing", RACING, SMALL),
            ("stormy", STORMY, SMALL),
            ("together", STORMY, TOGETHER),
            ("late", replace(LATE, races=0.3), SMALL),
            ("lost", LOST, SMALL),
            ("heavy", HEAVY, SMALL),
            ("sold out", SOLD_OUT, SMALL),
            ("crowded sky", CROWDED_SKY, SMALL),
        )
    ),
)
