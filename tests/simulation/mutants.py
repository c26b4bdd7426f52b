"""Mutants of the whole system: each takes one condition, fence, intent or look away, and names the
faults under which a world must notice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from control_plane.actors import trial as trials
from control_plane.agents import desired, service, sessions
from control_plane.dispatch import due, engine, mailbox, reader
from control_plane.state.faults import TableDecorator
from control_plane.state.table import Expect, StateTable, Write
from lambdas.simulation import world as worlds
from lambdas.simulation.chances import NONE, Chances
from lambdas.simulation.watch import Shadow, WatchedTable
from provisioner import reconcile
from provisioner.clouds.provider import CloudProvider
from tests.simulation.conditions import Family, WithoutCondition

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """`takes_away` something; under `chances` a world breaks with words in which `seen` is found."""

    name: str
    takes_away: Patch
    chances: Chances
    seen: str = ""


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


def of_any_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial takes the word of allocations that it has let go of."""
    fenced = trials._of_allocation

    def unfenced(state: Any, message: Any, turn: Any) -> Any:
        return fenced(state, replace(message, epoch=state.epoch), turn)

    monkeypatch.setattr(trials, "_of_allocation", unfenced)


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
        return attempted(self, Renaming(cloud), intent, **named)  # type: ignore[arg-type]

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


RACING = replace(NONE, races=0.15, duplicates=0.05, reordering=0.1, crashes=0.01)
TORN = replace(NONE, torn_queries=0.3, races=0.1)
LATE = replace(NONE, reordering=0.3, duplicates=0.3, agent_restarts_hourly=10.0, lost_calls=0.1)
LOST = replace(NONE, zombies_hourly=6.0, agent_restarts_hourly=8.0, lost_calls=0.1)
CLOUDY = replace(NONE, no_capacity=0.3, lost_calls=0.4, replayed_tokens=0.8, crashes=0.02)

MUTANTS = (
    Mutant("head", without_family(Family.HEAD), RACING),
    Mutant("birth", without_family(Family.BIRTH), RACING),
    Mutant("no-actor", without_family(Family.NO_ACTOR), RACING),
    Mutant("consumed", without_family(Family.CONSUMED), RACING),
    Mutant("new-mail", without_family(Family.NEW_MAIL), RACING),
    Mutant("guard", without_family(Family.GUARD), RACING),
    Mutant("session", without_family(Family.SESSION), LATE),
    Mutant("lease", without_family(Family.LEASE), LOST),
    Mutant("attempts", without_family(Family.ATTEMPTS), RACING),
    Mutant("expiry", without_family(Family.EXPIRY), RACING),
    Mutant("beside", without_family(Family.BESIDE), LATE),
    Mutant("trial-epoch", of_any_epoch, LOST),
    Mutant("session-epoch", patched(service, "_check_session", lambda *given: None), LATE),
    Mutant("lost-lease", patched(service, "renew", lambda *given: None), LOST),
    Mutant("offsets", patched(sessions, "_is_new", lambda report, writers: True), LATE),
    Mutant("crowded", patched(desired, "_is_crowded", lambda *given: False), LOST),
    Mutant("gap", patched(reader, "_missed", lambda *given: False), TORN),
    Mutant("backstop", patched(due, "drive", lambda engine: None), replace(NONE, lost_triggers=0.4)),
    Mutant("alone", both(patched(due, "ALONE_FROM", 99), patched(engine, "ALONE_FROM", 99)), replace(NONE, out_of_memory=0.6, lost_triggers=0.3)),
    Mutant("one-token", with_one_token, CLOUDY),
    Mutant("new-tokens", with_a_new_token_each_time, CLOUDY),
    Mutant("sweep", patched(worlds.World, "_swept", lambda *given: None), CLOUDY),
    Mutant("new-tokens-no-sweep", both(with_a_new_token_each_time, patched(worlds.World, "_swept", lambda *given: None)), CLOUDY),
    Mutant("pending", blind_to_what_is_asked_for, CLOUDY),
    Mutant("fleet", without_conditions_on("fleets"), replace(CLOUDY, races=0.3)),
    Mutant("intent", without_conditions_on("intents#"), replace(CLOUDY, races=0.3)),
)
_ = mailbox
