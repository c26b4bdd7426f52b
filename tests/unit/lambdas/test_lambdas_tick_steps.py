"""The steps of a tick: independence, periods, time limits and early wakes."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from control_plane.actors.event_routes import EventType, Route
from control_plane.actors.events import Event, event_row
from control_plane.engine.engine import Engine
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put
from control_plane.webhooks.event_writes import event_put
from control_plane.webhooks.records import WebhookRecord, encode_webhook, webhook_key
from control_plane.webhooks.signatures import new_secret
from lambdas.aws.adapters import AwsAdapters
from lambdas.builder import Cluster
from lambdas.tick_steps import MINUTE_MS, Step, StepsFailed, TickSteps, run_steps
from tests.engine_timing import UNHURRIED
from tests.raw_server import http_answer, serve_raw
from tests.unit.webhooks.receiver import run_receiver


def steps_on(table: MemoryTable) -> TickSteps:
    """Return the steps of a deployed cluster on the table."""
    cluster = Cluster(AwsAdapters())
    cluster.engine = Engine(table, lambda: 1, UNHURRIED)
    return TickSteps(cluster)


def test_deletion_rate_follows_the_stored_configuration() -> None:
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


def test_failed_steps_are_named_and_stop_no_step() -> None:
    done: list[str] = []
    steps = [
        Step("leases", failing),
        Step("audit", lambda: done.append("audit")),
        Step("orphan cleanup", failing),
    ]
    with pytest.raises(StepsFailed, match="leases, orphan cleanup"):
        run_steps(steps, 0, enough)
    assert done == ["audit"]


def test_step_runs_in_each_nth_minute() -> None:
    done: list[int] = []
    for minute in range(12):
        run_steps([Step("audit", partial(done.append, minute), 5)], minute * MINUTE_MS + 17, enough)
    assert done == [0, 5, 10]


def test_steps_without_enough_time_are_skipped_and_named(
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


def test_provisioning_runs_after_all_steps_without_cloud_calls() -> None:
    names = [step.name for step in steps_on(MemoryTable()).minute_steps(print)]
    assert names[-3:] == ["provisioning", "orphan cleanup", "webhooks"]
    assert {"suggestions", "collection", "audit", "lost agents"} < set(names)


def test_run_steps_returns_the_latest_retry_time() -> None:
    steps = [Step("a", lambda: 2_000), Step("b", lambda: 3_000), Step("c", lambda: None)]
    assert run_steps(steps, 0, enough) == 3_000
    assert run_steps(steps[2:], 0, enough) == 0


class EarlyProvisioner:
    """A provisioner that is too early `times` times and records waits, which reduce `left_ms`."""

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


def test_early_wake_waits_and_reconciles_again() -> None:
    provisioner = EarlyProvisioner(times=1)
    assert provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (2, [3.0])


def test_timely_wake_does_not_wait() -> None:
    provisioner = EarlyProvisioner(times=0)
    assert provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (1, [])


def test_wake_that_stays_too_early_is_not_done() -> None:
    provisioner = EarlyProvisioner(times=2)
    assert not provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (2, [3.0])


def test_wake_without_time_to_wait_is_not_done() -> None:
    provisioner = EarlyProvisioner(times=1)
    provisioner.left_ms = 7_999
    assert not provisioner.run_for_rows("notices")
    assert (provisioner.looks, provisioner.waits) == (1, [])


def test_wake_without_time_is_not_done_and_not_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provisioner = EarlyProvisioner(times=0)
    provisioner.left_ms = 4_999
    assert not provisioner.run_for_rows("notices")
    assert provisioner.looks == 0
    assert caplog.records == []


def test_wake_that_runs_out_of_time_is_not_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The suggestion step uses up the time, so that the pools are not reconciled.
    provisioner = EarlyProvisioner(times=0)

    def take_time() -> None:
        provisioner.left_ms -= 56_000

    provisioner.steps.suggestions = Step("suggestions", take_time)
    assert not provisioner.run_for_rows("suggestions", "notices")
    assert provisioner.looks == 0
    assert caplog.records == []


def test_new_rows_run_only_the_matching_steps() -> None:
    steps = steps_on(MemoryTable())
    provisioning, suggestions = steps.provisioning, steps.suggestions
    assert steps.row_steps(["jobs#gpus", "notices", "jobs#gpus"]) == [provisioning]
    assert steps.row_steps(["suggestions", "suggestions"]) == [suggestions]
    assert steps.row_steps(["notices", "suggestions"]) == [suggestions, provisioning]


def record_deliveries(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the calls of the deliverer of later steps, as lists of partitions."""
    calls: list[list[str]] = []

    class Recorder:
        def deliver(self, partitions: list[str], budget_ms: int) -> None:
            calls.append(list(partitions))

    monkeypatch.setattr(Cluster, "deliverer", Recorder())
    return calls


def test_new_events_are_delivered_after_provisioning(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_deliveries(monkeypatch)
    steps = steps_on(MemoryTable())
    found = steps.row_steps(["events#experiment#1", "notices", "events#model#m"])
    assert [step.name for step in found] == ["provisioning", "webhooks"]
    assert steps.run_row_steps(["events#experiment#1"], enough)
    assert calls == [["events#experiment#1"]]


def test_tick_delivers_due_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MemoryTable()
    calls = record_deliveries(monkeypatch)
    steps = {step.name: step for step in steps_on(table).minute_steps(lambda **counts: None)}
    for due_ms in (0, 10**12):
        key = Key(f"events#experiment#{due_ms}", "0000000000000001")
        table.commit((Put(key, 1, b"{}", Expect.ABSENT, due_ms),))
    run_steps([steps["mail recovery"], steps["webhooks"]], 0, enough)
    assert calls == [["events#experiment#0"]]
    # The event is due again later, because its delivery may fail.
    run_steps([steps["mail recovery"], steps["webhooks"]], 0, enough)
    assert len(calls) == 1


def test_event_of_a_broken_receiver_is_retried_by_a_later_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, now_ms = MemoryTable(), 1_800_000_000_000
    adapters = AwsAdapters()
    monkeypatch.setattr(AwsAdapters, "cluster_id", "vision")
    monkeypatch.setattr(AwsAdapters, "cluster_url", "https://api.example.com")
    cluster = Cluster(adapters)
    cluster.engine = Engine(table, lambda: now_ms, UNHURRIED)
    monkeypatch.setattr(AwsAdapters, "clock", lambda self: now_ms)
    steps = TickSteps(cluster)
    body = json.dumps({"webhooks": {"allowed_private_hosts": ["127.0.0.1"]}}).encode()
    table.commit((Put(SHARED_CONFIG, 1, body, Expect.ABSENT),))
    with run_receiver(lambda number: 200 if number else 500) as receiver:
        route = Route(1, "hook", ())
        record = WebhookRecord(1, "hook", receiver.url, "json", new_secret(), "u", 1, route)
        table.commit((Put(webhook_key(1), 1, encode_webhook(record), Expect.ABSENT),))
        event = Event(EventType.TEST, "experiment#7", 1, "test")
        table.commit((event_put(event_row(event, (1,), now_ms), now_ms),))
        assert steps.run_row_steps(["events#experiment#7"], enough)
        assert [request.status for request in receiver.requests] == [500]
        for _ in range(3):
            now_ms += MINUTE_MS
            named = {step.name: step for step in steps.minute_steps(lambda **counts: None)}
            run_steps([named["mail recovery"], named["webhooks"]], 0, enough)
        assert [request.status for request in receiver.requests] == [500, 200]
    assert receiver.accepted_payloads()[0]["link"] == "https://api.example.com/ui/#/experiments/7"
    assert table.query("events#experiment#7", " ", "\x7f").rows == ()


def test_suggest_function_is_invoked_while_a_search_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MemoryTable()
    suggestions = steps_on(table).suggestions
    monkeypatch.setenv("DETCLOUD_SUGGEST_FUNCTION", "detcloud-vision-suggest")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-west-3")
    with serve_raw(http_answer(b"")) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", service.url)
        run_steps([suggestions], 0, enough)
        assert not service.requests
        table.commit((Put(Key("suggestions", "7"), 1, b"", Expect.ABSENT),))
        run_steps([suggestions], 0, enough)
    (request,) = service.requests
    assert b"/functions/detcloud-vision-suggest/invocations" in request.splitlines()[0]
    # The invocation is asynchronous.
    assert service.headers()["X-Amz-Invocation-Type"] == "Event"


def test_only_a_cluster_with_a_collector_exports_telemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    names = [step.name for step in steps_on(MemoryTable()).minute_steps(print)]
    assert "telemetry" not in names
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    names = [step.name for step in steps_on(MemoryTable()).minute_steps(print)]
    # The export may wait for the collector.
    assert names[-1] == "telemetry"


def test_tick_without_time_skips_telemetry_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    step = steps_on(MemoryTable()).minute_steps(print)[-1]
    done: list[str] = []
    recorded = replace(step, run=lambda: done.append("export"))
    run_steps([recorded], 0, lambda: 29_999)
    assert not done
    assert not caplog.records
    run_steps([recorded], 0, lambda: 30_000)
    assert done == ["export"]
