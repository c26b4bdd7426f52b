"""The steps of a tick: none holds up another."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from control_plane.engine.engine import Engine
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put
from lambdas.aws import adapters as aws_adapters
from lambdas.aws.adapters import AwsAdapters
from lambdas.builder import Cluster
from lambdas.tick_steps import MINUTE_MS, Step, StepsFailed, TickSteps, run_steps
from tests.engine_timing import UNHURRIED


def steps_on(table: MemoryTable) -> TickSteps:
    """The steps of a deployed cluster on the table."""
    cluster = Cluster(AwsAdapters())
    cluster.engine = Engine(table, lambda: 1, UNHURRIED)
    return TickSteps(cluster)


def test_collections_are_paced_as_the_configuration_in_force_has_it() -> None:
    table = MemoryTable()
    cluster = Cluster(AwsAdapters())
    cluster.engine = Engine(table, lambda: 1, UNHURRIED)
    limiter = cluster.deletion_rate_limiter
    assert limiter.limit == 100
    fields = json.dumps({"checkpoint_deletions_per_second": 7}).encode()
    table.commit((Put(SHARED_CONFIG, 1, fields, Expect.ABSENT),))
    limiter.refresh_limit()
    assert limiter.limit == 7


def failing() -> None:
    raise OSError("away")


def enough() -> int:
    return 60_000


def test_a_step_that_fails_holds_up_no_other_and_is_named() -> None:
    done: list[str] = []
    steps = [
        Step("leases", failing),
        Step("audit", lambda: done.append("audit")),
        Step("orphan cleanup", failing),
    ]
    with pytest.raises(StepsFailed, match="leases, orphan cleanup"):
        run_steps(steps, 0, enough)
    assert done == ["audit"]


def test_a_step_is_done_in_the_minutes_that_are_its_own() -> None:
    done: list[int] = []
    for minute in range(12):
        run_steps([Step("audit", partial(done.append, minute), 5)], minute * MINUTE_MS + 17, enough)
    assert done == [0, 5, 10]


def test_a_step_is_not_begun_without_the_time_for_it_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left_ms = 60_000
    done: list[str] = []

    def slow() -> None:
        nonlocal left_ms
        left_ms -= 57_000

    steps = [
        Step("leases", lambda: done.append("leases")),
        Step("provisioning", slow),
        Step("orphan cleanup", lambda: done.append("orphan cleanup")),
        Step("audit", lambda: done.append("audit")),
    ]
    with pytest.raises(StepsFailed, match="orphan cleanup, audit"):
        run_steps(steps, 0, lambda: left_ms)
    assert done == ["leases"]
    assert "orphan cleanup was not started: only 3000 ms are left" in caplog.text


def test_who_wakes_others_comes_before_what_a_silent_cloud_holds_up() -> None:
    names = [step.name for step in steps_on(MemoryTable()).minute_steps(print)]
    assert names[-2:] == ["provisioning", "orphan cleanup"]
    assert {"suggestions", "collection", "audit", "lost agents"} < set(names)


def test_a_round_tells_when_the_last_of_its_steps_can_be_done() -> None:
    steps = [Step("a", lambda: 2_000), Step("b", lambda: 3_000), Step("c", lambda: None)]
    assert run_steps(steps, 0, enough) == 3_000
    assert run_steps(steps[2:], 0, enough) == 0


class EarlyProvisioner:
    """The provisioner of one pool, which is too early `times` times and notes its waits.

    A wait takes from the `left_ms`.
    """

    left_ms = 60_000

    def __init__(self, times: int) -> None:
        self.times = times
        self.looks = 0
        self.waits: list[float] = []
        parts = SimpleNamespace(
            provisioner=SimpleNamespace(reconciler=self),
            adapters=SimpleNamespace(clock=lambda: 1_000),
        )
        self.steps = TickSteps(cast(Any, parts))

    def reconcile_pools(self) -> int:
        self.looks += 1
        return 3_000 if self.looks <= self.times else 0

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.left_ms -= int(seconds * 1000)

    def run_for_rows(self, *partitions: str) -> bool:
        return self.steps.run_row_steps(partitions, lambda: self.left_ms, self.sleep)


def test_a_wake_that_comes_too_early_is_waited_out() -> None:
    provisioner = EarlyProvisioner(times=1)
    assert provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (2, [3.0])


def test_a_wake_in_time_waits_for_nothing() -> None:
    provisioner = EarlyProvisioner(times=0)
    assert provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (1, [])


def test_a_wake_that_is_too_early_again_is_to_come_again() -> None:
    provisioner = EarlyProvisioner(times=2)
    assert not provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (2, [3.0])


def test_a_wake_that_has_no_time_to_wait_is_to_come_again() -> None:
    provisioner = EarlyProvisioner(times=1)
    provisioner.left_ms = 7_999
    assert not provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (1, [])


def test_a_wake_without_time_is_to_come_again_and_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provisioner = EarlyProvisioner(times=0)
    provisioner.left_ms = 4_999
    assert not provisioner.run_for_rows("notices")
    assert provisioner.looks == 0
    assert caplog.records == []


def test_a_wake_whose_time_ends_within_its_steps_is_to_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # What suggests takes the time, so that the pools are not looked at.
    provisioner = EarlyProvisioner(times=0)

    def take_time() -> None:
        provisioner.left_ms -= 56_000

    provisioner.steps.suggestions = Step("suggestions", take_time)
    assert not provisioner.run_for_rows("suggestions", "notices")
    assert provisioner.looks == 0
    assert caplog.records == []


def test_new_rows_have_done_only_what_they_are_about() -> None:
    steps = steps_on(MemoryTable())
    provisioning, suggestions = steps.provisioning, steps.suggestions
    assert steps.row_steps(["jobs#gpus", "notices", "jobs#gpus"]) == [provisioning]
    assert steps.row_steps(["suggestions", "suggestions"]) == [suggestions]
    assert steps.row_steps(["notices", "suggestions"]) == [suggestions, provisioning]


def test_who_suggests_is_woken_while_a_search_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    invoked: list[dict[str, Any]] = []

    class Lambda:
        def invoke(self, **request: Any) -> None:
            invoked.append(request)

    table = MemoryTable()
    suggestions = steps_on(table).suggestions
    monkeypatch.setattr(aws_adapters, "lazy_client", lambda service: Lambda())
    monkeypatch.setenv("DETCLOUD_SUGGEST_FUNCTION", "detcloud-vision-suggest")
    run_steps([suggestions], 0, enough)
    assert not invoked
    table.commit((Put(Key("suggestions", "7"), 1, b"", Expect.ABSENT),))
    run_steps([suggestions], 0, enough)
    [request] = invoked
    # Nobody waits for the answer.
    assert (request["FunctionName"], request["InvocationType"]) == (
        "detcloud-vision-suggest",
        "Event",
    )
