from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.pool import PoolState
from control_plane.actors.step import Turn
from control_plane.dispatch import kinds
from control_plane.dispatch.fold import Snapshot
from control_plane.dispatch.head import Header
from control_plane.dispatch.reader import PartReader, Reading
from control_plane.dispatch.turns import bury, settle, take_named
from control_plane.evolve import evolve
from control_plane.state.table import Key, Row, Unavailable

POOL = "pool#a"
AGENT = {"agent": "x", "epoch": 1, "reason": "gone"}


class Counting:
    """A table with one row, which counts its readings."""

    def __init__(self, *, answers: bool = True) -> None:
        self.readings = 0
        self._answers = answers

    def get(self, key: Key) -> Row | None:
        if not self._answers:
            raise Unavailable
        self.readings += 1
        return Row(key, self.readings, b"%d" % self.readings)


def a_reader(table: Counting) -> PartReader:
    return PartReader(table, Reading(Snapshot(POOL, 1, Header(), PoolState("a")), ()))


def acts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The pool reads a row, says so, and raises for agents that are broken."""

    def step(state: Any, message: Any, turn: Turn) -> Any:
        if message.agent == "broken":
            raise ValueError(message.agent)
        turn.because(f"saw {turn.row('rows', 'r').body.decode()}")
        return evolve(state, queued=state.queued + 1)

    changes: dict[str, Any] = {name: step}
    pool = replace(kinds.KINDS["pool"], **changes)
    monkeypatch.setattr(kinds, "KINDS", {**kinds.KINDS, "pool": pool})


def test_a_row_is_read_once_in_a_fold_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    acts(monkeypatch, "step")
    reader = a_reader(Counting())
    for _ in range(2):
        take_named(reader, "AgentLost", AGENT, 5)
    assert reader.fold.reasons == [(0, "saw 1"), (1, "saw 1")]
    assert reader.fold.seen[Key("rows", "r")] == (1, b"1")
    assert reader.fold.state.queued == 2


def test_a_dead_letter_that_has_no_fallback_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acts(monkeypatch, "fallback")
    reader = a_reader(Counting())
    bury(reader, "AgentLost", {**AGENT, "agent": "broken"}, 5)
    bury(reader, "AgentHatched", {}, 5)
    assert reader.fold.turns == 0
    bury(reader, "AgentLost", AGENT, 5)
    assert reader.fold.state.queued == 1


def test_a_dead_letter_waits_for_a_table_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acts(monkeypatch, "fallback")
    with pytest.raises(Unavailable):
        bury(a_reader(Counting(answers=False)), "AgentLost", AGENT, 5)


def test_a_fold_ends_with_what_its_kind_does_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = replace(kinds.KINDS["pool"], settle=lambda state, turn: evolve(state, waits="settled"))
    monkeypatch.setattr(kinds, "KINDS", {**kinds.KINDS, "pool": pool})
    reader = a_reader(Counting())
    settle(reader, 5)
    assert reader.fold.state.waits == "settled"
