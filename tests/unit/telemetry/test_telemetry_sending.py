"""Requests to a collector: headers, redirects, time limits and log lines."""

import logging
import time
from pathlib import Path

import pytest

from control_plane.actors.spans import SPANS, RunSpans, Span, encode_spans, spans_sort_key
from control_plane.state.table import Expect, Key, Put
from control_plane.telemetry import metric_export, sending, span_export
from control_plane.telemetry.endpoint import ENDPOINT, ExportFailed
from control_plane.telemetry.exports import export_telemetry
from control_plane.telemetry.sending import Sender
from tests.emulators.otlp_receiver import OtlpReceiver, serve_otlp
from tests.raw_server import serve_raw
from tests.unit.api.cluster import NOW_MS, Cluster, build_cluster
from tests.unit.telemetry.test_telemetry_spans import HEADER, stored_rows

KEY = "canary-of-the-collector"


def store_spans(cluster: Cluster, count: int) -> None:
    """Store rows with one span each."""
    run = RunSpans(HEADER, 1, 1, 1, "default", ("node",), (Span("run", NOW_MS, NOW_MS + 1),))
    for number in range(count):
        key = Key(SPANS, spans_sort_key(NOW_MS, 1, number, "end"))
        cluster.services.table.commit((Put(key, 1, encode_spans(run), Expect.ABSENT),))


def test_headers_are_part_of_each_request(cluster: Cluster, receiver: OtlpReceiver) -> None:
    store_spans(cluster, 1)
    export_telemetry(cluster.services, {"Api-Key": KEY})
    assert receiver.requests == ["/v1/traces", "/v1/metrics"]
    assert [headers["api-key"] for headers in receiver.headers] == [KEY, KEY]


def test_standard_variable_has_the_headers_of_a_local_cluster(
    cluster: Cluster, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={KEY}")
    export_telemetry(cluster.services, {})
    assert receiver.headers[0]["api-key"] == KEY


def test_redirect_is_refused(
    cluster: Cluster, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_otlp() as other:
        receiver.status, receiver.moved_to = 307, other.url
        export_telemetry(cluster.services, {"Api-Key": KEY})
        assert other.requests == []
    assert "did not accept" in caplog.text
    assert KEY not in caplog.text


def test_one_pass_exports_more_rows_than_a_commit_deletes(
    cluster: Cluster, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "ROWS_MAX", 3)
    store_spans(cluster, 7)
    export_telemetry(cluster.services, {})
    assert len(receiver.spans) == 7
    assert stored_rows(cluster) == []


def test_unreachable_collector_causes_warnings_and_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    for module in (span_export, metric_export):
        monkeypatch.setattr(module, "SECONDS_MAX", 0.2)
    cluster = build_cluster(tmp_path / "objects")
    store_spans(cluster, 1)
    with caplog.at_level(logging.WARNING):
        export_telemetry(cluster.services, {})
    assert "spans were not exported" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(stored_rows(cluster)) == 1


def test_answer_that_never_ends_delays_a_pass_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "JOIN_SECONDS_MAX", 0.3)
    for module in (span_export, metric_export):
        monkeypatch.setattr(module, "SENDER", Sender())
        monkeypatch.setattr(module, "SECONDS_MAX", 0.5)
    with serve_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{") as service:
        monkeypatch.setenv(ENDPOINT, service.url)
        cluster = build_cluster(tmp_path / "objects")
        store_spans(cluster, 1)
        began = time.monotonic()
        export_telemetry(cluster.services, {})
        assert time.monotonic() - began < 5
    assert "spans were not exported" in caplog.text
    assert len(stored_rows(cluster)) == 1


def test_second_export_is_refused_while_the_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "JOIN_SECONDS_MAX", 0.01)
    sender = Sender()

    def send_slowly() -> bool:
        time.sleep(0.3)
        return True

    def send_metrics() -> bool:
        raise AssertionError

    with pytest.raises(ExportFailed, match="did not accept 1 spans"):
        sender.send(send_slowly, "1 spans")
    with pytest.raises(ExportFailed, match="the metrics must wait"):
        sender.send(send_metrics, "the metrics")


def test_export_that_raises_counts_as_refused() -> None:
    def fail_to_send() -> bool:
        raise OSError("no socket")

    with pytest.raises(ExportFailed, match="did not accept"):
        Sender().send(fail_to_send, "1 spans")
