"""The span of a command, and the trace context of the command's requests."""

import re
import sys

import pytest

from detcloud.cli.framework.tracing import ENDPOINT, PARENT, trace_command
from tests.conftest import require

require("opentelemetry.exporter.otlp.proto.http")

from tests.emulators.otlp_receiver import serve_otlp  # noqa: E402

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.delenv(PARENT, raising=False)


def test_command_without_a_collector_passes_on_the_callers_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with trace_command("detcloud create") as context:
        assert context == ""
    monkeypatch.setenv(PARENT, f" {CONTEXT}\n")
    with trace_command("detcloud create") as context:
        assert context == CONTEXT


def test_command_is_a_span_of_a_new_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_otlp() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        with trace_command("detcloud create") as context:
            pass
        found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-0[13]", context)
        assert found
        span = receiver.find_span("detcloud create")
        assert (span.trace, span.span, span.parent) == (found[1], found[2], "")
        assert span.resource["service.name"] == "detcloud-cli"


def test_command_continues_the_callers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_otlp() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        monkeypatch.setenv(PARENT, CONTEXT)
        with trace_command("detcloud create"):
            pass
        span = receiver.find_span("detcloud create")
        assert (span.trace, span.parent) == (TRACE, SPAN)


def test_failed_command_is_a_failed_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_otlp() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        with pytest.raises(RuntimeError), trace_command("detcloud create"):
            raise RuntimeError("refused")
        assert "refused" in receiver.find_span("detcloud create").failure


def test_missing_packages_cause_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv(PARENT, CONTEXT)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with trace_command("detcloud create") as context:
        assert context == CONTEXT
    assert "install detcloud[telemetry]" in capsys.readouterr().err


def test_refusing_collector_fails_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_otlp() as receiver:
        receiver.status = 400
        monkeypatch.setenv(ENDPOINT, receiver.url)
        with trace_command("detcloud create") as context:
            assert context
        assert receiver.requests == ["/v1/traces"]
