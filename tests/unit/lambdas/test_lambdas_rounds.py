"""The steps of a tick: none holds up another."""

from functools import partial
from typing import Any

import pytest

from control_plane.dispatch.engine import Engine
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put
from lambdas import deployed
from lambdas.rounds import (
    MINUTE_MS,
    RoundFailed,
    Step,
    provisioning,
    run_round,
    short_round,
    suggesting,
)


def failing() -> None:
    raise OSError("away")


def test_a_step_that_fails_holds_up_no_other_and_is_named() -> None:
    done: list[str] = []
    steps = [
        Step("leases", failing),
        Step("books", lambda: done.append("books")),
        Step("sweep", failing),
    ]
    with pytest.raises(RoundFailed, match="leases, sweep"):
        run_round(steps, 0)
    assert done == ["books"]


def test_a_step_is_done_in_the_minutes_that_are_its_own() -> None:
    done: list[int] = []
    for minute in range(12):
        run_round([Step("audit", partial(done.append, minute), 5)], minute * MINUTE_MS + 17)
    assert done == [0, 5, 10]


def test_new_rows_have_done_only_what_they_are_about() -> None:
    assert short_round(["jobs#gpus", "notices", "jobs#gpus"]) == [provisioning]
    assert short_round(["suggestions", "suggestions"]) == [suggesting]
    assert short_round(["notices", "suggestions"]) == [suggesting, provisioning]


def test_who_suggests_is_woken_while_a_search_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    invoked: list[dict[str, Any]] = []

    class Lambda:
        def invoke(self, **request: Any) -> None:
            invoked.append(request)

    table = MemoryTable()
    engine = Engine(table, lambda: 1)
    monkeypatch.setattr(deployed, "engine", lambda: engine)
    monkeypatch.setattr(deployed, "client", lambda service: Lambda())
    monkeypatch.setenv("DETCLOUD_SUGGEST_FUNCTION", "detcloud-vision-suggest")
    run_round([suggesting], 0)
    assert not invoked
    table.commit((Put(Key("suggestions", "7"), 1, b"", Expect.ABSENT),))
    run_round([suggesting], 0)
    [request] = invoked
    # Nobody waits for the answer.
    assert (request["FunctionName"], request["InvocationType"]) == (
        "detcloud-vision-suggest",
        "Event",
    )
