"""The spans of traced runs, from the header of a submission to a collector."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors.spans import (
    KEPT_MS,
    RUN,
    SPANS,
    Span,
    decode_spans,
    parse_traceparent,
    span_id,
    traceparent_of_run,
)
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Key, Put, Row
from control_plane.telemetry.exports import export_telemetry
from tests.emulators.otlp_receiver import OtlpReceiver
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"
NS = 1_000_000
DURATIONS = {"code": 300, "packages": 200, "machine": 90_000, "agent": 50_000}


def submit(
    cluster: Cluster,
    header: str | None = HEADER,
    config: str = CONFIG,
    more: Sequence[tuple[str, str]] = (),
) -> Answer:
    headers = [*more] if header is None else [("traceparent", header), *more]
    content = {"config": config, "model_code": cluster.store_code()}
    return call(
        cluster.app,
        "POST",
        f"{V1}/experiments",
        token=TOKENS[Role.USER],
        headers=headers,
        content=content,
    )


def stored_rows(cluster: Cluster) -> list[Row]:
    return list(read_rows(cluster.services.table, SPANS))


def start_run(cluster: Cluster, agent: Agent) -> None:
    """Report the start of trial 1 two seconds after the assignment, and the step a second later."""
    cluster.clock.ms += 2_000
    running = {"kind": "container", "state": "RUNNING", "durations_ms": DURATIONS}
    agent.report("1.1", running, writer="agent")
    cluster.clock.ms += 1_000
    step = {"kind": "first_step", "steps_completed": 1}
    agent.report("1.1", step | {"durations_ms": {"restore": 0, "first_step": 400}})


def variables(agent: Agent, device: str = "cpu") -> list[str]:
    """Return the variables of the first run that the agent is to start."""
    spec: dict[str, Any] = agent.sync().json["desired"][0]["spec"]
    listed: list[str] = spec["environment_variables"][device]
    return listed


def test_phases_of_a_start_become_spans_of_the_run(
    cluster: Cluster, receiver: OtlpReceiver
) -> None:
    assert submit(cluster).status == 201
    cluster.clock.ms += 5_000
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    agent.finish("1.1")
    export_telemetry(cluster.services, {})
    assert stored_rows(cluster) == []
    run = receiver.find_span("run of trial 1")
    assert (run.trace, run.parent, run.failure) == (TRACE, PARENT, "")
    times = {
        # Submitted at NOW_MS, assigned after 5 s, started after 2 s, a step after 1 s.
        "queue": (0, 5_000),
        "start": (5_000, 7_000),
        "code": (6_500, 6_800),
        "packages": (6_800, 7_000),
        "restore": (7_600, 7_600),
        "first_step": (7_600, 8_000),
        "run": (5_000, 8_000),
    }
    assert len(receiver.spans) == len(times)
    for phase, (started, ended) in times.items():
        span = receiver.find_span(f"{phase} of trial 1")
        assert (span.started_ns, span.ended_ns) == ((NOW_MS + started) * NS, (NOW_MS + ended) * NS)
        assert span.trace == TRACE
        assert span.parent == (PARENT if phase == "run" else run.span)
        assert span.attributes == {
            "detcloud.experiment": 1,
            "detcloud.trial": 1,
            "detcloud.run": 1,
            "detcloud.pool": "default",
            "detcloud.agents": ("node",),
            "detcloud.phase": phase,
        }
    assert run.resource["service.name"] == "detcloud"
    assert run.resource["detcloud.cluster"] == "cluster-1"


def test_code_of_a_run_continues_the_trace(cluster: Cluster) -> None:
    submit(cluster)
    [parent, *_] = variables(Agent(cluster))
    expected = span_id(TRACE, 1, 1, RUN)
    assert parent == f"TRACEPARENT=00-{TRACE}-{expected}-01"


@pytest.mark.parametrize("standard", [HEADER, "of nobody", None])
def test_own_header_takes_precedence_over_the_standard_header(
    cluster: Cluster, standard: str | None
) -> None:
    own = ("X-Detcloud-Traceparent", f"00-{'c' * 32}-{'d' * 16}-01")
    submit(cluster, standard, more=[own])
    expected = span_id("c" * 32, 1, 1, RUN)
    assert variables(Agent(cluster))[0] == f"TRACEPARENT=00-{'c' * 32}-{expected}-01"


def test_configured_variable_replaces_the_trace(cluster: Cluster) -> None:
    config = f"{CONFIG}environment: {{environment_variables: [TRACEPARENT=own]}}\n"
    submit(cluster, config=config)
    # The agent uses the last of equal names.
    assert variables(Agent(cluster))[-1] == "TRACEPARENT=own"


def test_failed_run_is_a_failed_span(cluster: Cluster, receiver: OtlpReceiver) -> None:
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    exited = {"kind": "exited", "reason": "errored", "code": 1, "message": "out of memory"}
    agent.report("1.1", exited, writer="agent")
    export_telemetry(cluster.services, {})
    assert receiver.find_span("run of trial 1").failure == "out of memory"


def test_adopted_run_has_one_start(cluster: Cluster, receiver: OtlpReceiver) -> None:
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    agent.report("1.1", {"kind": "container", "state": "RUNNING"}, writer="agent")
    export_telemetry(cluster.services, {})
    assert receiver.find_span("start of trial 1")


@pytest.mark.parametrize("header", [None, "", "nonsense", HEADER.upper(), HEADER + "-x"])
def test_submission_without_a_valid_trace_writes_no_spans(
    cluster: Cluster, header: str | None
) -> None:
    assert submit(cluster, header).status == 201
    agent = Agent(cluster)
    assert variables(agent) == []
    agent.take_work()
    start_run(cluster, agent)
    agent.finish("1.1")
    assert stored_rows(cluster) == []


def test_unsampled_trace_is_passed_on_and_not_exported(cluster: Cluster) -> None:
    submit(cluster, UNSAMPLED)
    agent = Agent(cluster)
    assert variables(agent)[0].endswith("-00")
    agent.take_work()
    start_run(cluster, agent)
    agent.finish("1.1")
    assert stored_rows(cluster) == []


def test_cluster_without_a_collector_stores_no_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    cluster = build_cluster(tmp_path / "objects")
    submit(cluster)
    agent = Agent(cluster)
    assert TRACE in variables(agent)[0]
    agent.take_work()
    start_run(cluster, agent)
    agent.finish("1.1")
    assert stored_rows(cluster) == []


def test_refused_spans_are_exported_again(
    cluster: Cluster, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    receiver.status = 400
    with caplog.at_level(logging.WARNING, "control_plane.telemetry"):
        export_telemetry(cluster.services, {})
    assert "did not accept" in caplog.text
    # An error would raise the alarm `errors`.
    records = [record for record in caplog.records if record.name.startswith("control_plane")]
    assert {record.levelno for record in records} == {logging.WARNING}
    assert len(stored_rows(cluster)) == 2
    receiver.status = 200
    export_telemetry(cluster.services, {})
    assert receiver.find_span("first_step of trial 1")
    assert stored_rows(cluster) == []


def test_second_export_of_a_row_sends_equal_ids(cluster: Cluster, receiver: OtlpReceiver) -> None:
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    rows = stored_rows(cluster)
    export_telemetry(cluster.services, {})
    # As after a process that was killed before the deletion.
    cluster.services.table.commit([Put(row.key, 1, row.body, Expect.ABSENT) for row in rows])
    export_telemetry(cluster.services, {})
    ids = [(span.trace, span.span, span.name) for span in receiver.spans]
    assert len(ids) == 2 * len(set(ids))


def test_undecodable_row_is_skipped(
    cluster: Cluster, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    key = Key(SPANS, "000000000000001.1.1.end")
    cluster.services.table.commit((Put(key, 1, b"{broken", Expect.ABSENT),))
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    export_telemetry(cluster.services, {})
    assert receiver.find_span("start of trial 1")
    assert stored_rows(cluster) == []
    assert "cannot be decoded" in caplog.text


def test_rows_of_spans_expire_after_a_day(cluster: Cluster) -> None:
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    first = stored_rows(cluster)[0]
    assert first.expires
    assert first.due_ms == NOW_MS + 2_000 + KEPT_MS


def test_values_of_newer_versions_are_ignored(cluster: Cluster) -> None:
    submit(cluster)
    agent = Agent(cluster)
    agent.take_work()
    start_run(cluster, agent)
    body = stored_rows(cluster)[0].body
    newer = body.replace(b'"queue", ', b'"queue", ').replace(b', ""]', b', "", "newer"]')
    assert newer != body
    assert decode_spans(newer) == decode_spans(body)
    assert isinstance(decode_spans(newer).spans[0], Span)


def test_parses_trace_contexts_of_later_versions() -> None:
    later = f"01-{TRACE}-{PARENT}-03-more"
    assert parse_traceparent(later) == parse_traceparent(HEADER)


@pytest.mark.parametrize(
    "header",
    [
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE[1:]}-{PARENT}-01",
        "x" * 10_000,
    ],
)
def test_invalid_trace_contexts_are_ignored(header: str) -> None:
    assert parse_traceparent(header) is None
    assert traceparent_of_run(header, 1, 1) == ""


def test_runs_have_different_spans() -> None:
    ids = {span_id(TRACE, trial, epoch, RUN) for trial in (1, 2) for epoch in (1, 2)}
    assert len(ids) == 4
