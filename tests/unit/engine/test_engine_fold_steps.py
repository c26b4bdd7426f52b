from typing import Any

import pytest

from control_plane.actors.pool.actor import PoolState
from control_plane.actors.step import StepContext
from control_plane.engine.fold import ActorSnapshot
from control_plane.engine.fold_steps import apply_fallback, apply_stored_message, finish_fold
from control_plane.engine.head import Header
from control_plane.engine.reader import FoldReader, LoadedActor
from control_plane.evolve import evolve
from control_plane.state.table import Key, Row, Unavailable
from tests.changed_actors import change_actor_type

POOL = "pool#a"
AGENT = {"agent": "x", "epoch": 1, "reason": "gone"}


class Counting:
    """A table with a single row and a revision that counts the reads."""

    def __init__(self, *, answers: bool = True) -> None:
        self.readings = 0
        self._answers = answers

    def get(self, key: Key) -> Row | None:
        if not self._answers:
            raise Unavailable
        self.readings += 1
        return Row(key, self.readings, b"%d" % self.readings)


def a_reader(table: Counting) -> FoldReader:
    return FoldReader(table, LoadedActor(ActorSnapshot(POOL, 1, Header(), PoolState("a")), ()))


def patch_pool(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Replace a function of the pool type by a step that reads a row and adds a reason.

    The step raises ValueError for the agent `broken`.
    """

    def step(state: Any, message: Any, context: StepContext) -> Any:
        if message.agent == "broken":
            raise ValueError(message.agent)
        context.add_reason(f"saw {context.row('rows', 'r').body.decode()}")
        return evolve(state, queued=state.queued + 1)

    change_actor_type(monkeypatch, "pool", **{name: step})


def test_row_is_read_and_recorded_once_in_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_pool(monkeypatch, "step")
    reader = a_reader(Counting())
    for _ in range(2):
        apply_stored_message(reader, "AgentLost", AGENT, 5)
    assert reader.fold.reasons == [(0, "saw 1"), (1, "saw 1")]
    assert reader.fold.rows_read[Key("rows", "r")] == (1, b"1")
    assert reader.fold.state.queued == 2


def test_failing_fallback_leaves_the_fold_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch_pool(monkeypatch, "fallback")
    reader = a_reader(Counting())
    apply_fallback(reader, "AgentLost", {**AGENT, "agent": "broken"}, 5)
    apply_fallback(reader, "AgentHatched", {}, 5)
    assert reader.fold.steps == 0
    apply_fallback(reader, "AgentLost", AGENT, 5)
    assert reader.fold.state.queued == 1


def test_fallback_raises_if_the_table_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch_pool(monkeypatch, "fallback")
    with pytest.raises(Unavailable):
        apply_fallback(a_reader(Counting(answers=False)), "AgentLost", AGENT, 5)


def test_finish_fold_applies_the_function_of_the_actor_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_actor_type(
        monkeypatch,
        "pool",
        finish_fold=lambda state, context: evolve(state, wait_reason="settled"),
    )
    reader = a_reader(Counting())
    finish_fold(reader, 5)
    assert reader.fold.state.wait_reason == "settled"
