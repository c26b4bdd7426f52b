"""The deployed functions on Google Cloud: events, calls, logs and passes."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.engine.engine import Engine
from control_plane.engine.mailbox import MAIL
from control_plane.fleet.records import Market, Offering
from control_plane.gcp.row_documents import document_path
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Key, Page, Unavailable
from lambdas.clock import RESERVE_MS
from lambdas.gcp.adapters import GcpAdapters
from lambdas.gcp.function import AGAIN, Call, Function, caller_scope, client_address
from lambdas.gcp.invocations import invoke_url
from lambdas.gcp.row_events import (
    SENDER_SECONDS,
    NotAnEvent,
    is_event,
    is_left_to_tick,
    new_row_path,
    seconds_of_sender,
)
from lambdas.gcp.shared_pass import PassFailed, SharedPass
from lambdas.gcp.telemetry import CloudLines, Telemetry, trace_fields
from lambdas.receivers import NotAdvanced, advance_receiver
from provisioner.clouds.provider import ConfigurationError
from provisioner.model import ProvisionerSettings
from tests.emulators.eventarc import event_headers
from tests.engine_timing import UNHURRIED
from tests.patience import ANSWER_SECONDS_MAX, wait_until

POOL = addresses.pool("gpus")
MAIL_PATH = document_path(Key(POOL, f"{MAIL}1#a"))
TRACE = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restore the root logger after the test, since Telemetry replaces the handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def answer(function: Function, method: str = "POST", headers: Mapping[str, str] = {}) -> int:
    """Send a request to a function and return the status of the answer."""
    return asyncio.run(status_of(function, method, headers))


async def status_of(function: Function, method: str, headers: Mapping[str, str]) -> int:
    """Send a request to a function in the running loop and return the status of the answer."""
    statuses: list[int] = []
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    scope = {"type": "http", "method": method, "headers": raw}
    await function(scope, receive, send)
    return statuses[0]


def test_event_names_the_new_row() -> None:
    headers = event_headers("team", "vision", MAIL_PATH)
    assert is_event(headers)
    assert new_row_path(headers, "advance") == MAIL_PATH
    assert not is_event({"content-type": "application/json"})


def test_malformed_event_is_refused() -> None:
    structured = "application/cloudevents+json; charset=utf-8"
    for headers in ({"ce-id": "1"}, {"content-type": structured}):
        assert is_event(headers)
        with pytest.raises(NotAnEvent):
            new_row_path(headers, "tick")


@pytest.mark.parametrize(
    "changed",
    [
        {"ce-type": "google.cloud.firestore.document.v1.updated"},
        {"ce-document": document_path(Key("notices", "i-1"))},
        {"ce-document": document_path(Key(POOL, "M"))},
        {"ce-document": f"{MAIL_PATH}/rows/x"},
        {"ce-document": ""},
        {"ce-id": ""},
        {"ce-source": ""},
        {"ce-specversion": "2.0"},
        {"content-type": "application/cloudevents-batch+json"},
        # Ids without a row, which Firestore would refuse at each delivery of the event.
        {"ce-document": "triggers/advance/rows/__x__"},
        {"ce-document": "triggers/advance/rows/."},
        {"ce-document": "triggers/advance/rows/%ff%fe"},
        {"ce-document": f"triggers/advance/rows/{'a' * 1501}"},
    ],
)
def test_refuses_events_for_other_rows_and_formats(changed: Mapping[str, str]) -> None:
    with pytest.raises(NotAnEvent):
        new_row_path({**event_headers("team", "vision", MAIL_PATH), **changed}, "advance")


def test_failed_call_has_status_500() -> None:
    telemetry = Telemetry("advance")

    def fail(call: Call) -> int:
        raise RuntimeError("it is broken")

    assert answer(Function(telemetry, fail)) == 500
    assert answer(Function(telemetry, lambda call: 204)) == 204
    assert answer(Function(telemetry, lambda call: 204), method="GET") == 405


def test_early_event_is_answered_with_a_4xx_status() -> None:
    # Pub/Sub repeats events that are not answered by 2xx. Cloud Run logs 5xx as errors.
    assert 400 <= AGAIN < 500


def test_call_knows_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_TIMEOUT_SECONDS", "900")
    left: list[int] = []

    def note_time(call: Call) -> int:
        left.append(call.left_ms())
        return 204

    answer(Function(Telemetry("tick"), note_time))
    assert 0 < left[0] <= 900_000


def test_busy_function_answers_at_once() -> None:
    began, go_on = threading.Event(), threading.Event()

    def work(call: Call) -> int:
        began.set()
        assert go_on.wait(ANSWER_SECONDS_MAX)
        return 204

    function = Function(Telemetry("suggest"), work, threads=2, one_at_a_time=True)
    with ThreadPoolExecutor() as callers:
        first = callers.submit(answer, function)
        assert began.wait(ANSWER_SECONDS_MAX)
        assert answer(function) == 204
        assert not first.done()
        go_on.set()
        assert first.result(ANSWER_SECONDS_MAX) == 204


@pytest.mark.parametrize(
    ("committed", "seconds"),
    [
        # The event arrives at 100 s. The commit was 0 s, 0.125 s or a minute earlier, or a minute
        # later by a different clock.
        ("1970-01-01T00:01:40.000000Z", SENDER_SECONDS),
        ("1970-01-01T00:01:39.875000Z", SENDER_SECONDS - 0.125),
        ("1970-01-01T00:01:39.875000123Z", SENDER_SECONDS - 0.125),
        ("1970-01-01T00:00:40.000000Z", 0.0),
        ("1970-01-01T00:02:40.000000Z", SENDER_SECONDS),
        ("yesterday", 0.0),
        ("0001-01-01T00:00:00Z", 0.0),
    ],
)
def test_recent_event_waits_for_the_sender(committed: str, seconds: float) -> None:
    assert seconds_of_sender({"ce-time": committed}, 100.0) == pytest.approx(seconds)
    assert seconds_of_sender({}, 100.0) == 0.0


@pytest.mark.parametrize(
    ("committed", "is_left"),
    [
        # The time is 100 s.
        ("1970-01-01T00:00:40.000000Z", False),
        ("1970-01-01T00:00:39.999000Z", True),
        ("1970-01-01T00:02:40.000000Z", False),
        ("yesterday", False),
    ],
)
def test_event_is_left_to_the_tick_after_a_minute(committed: str, is_left: bool) -> None:
    assert is_left_to_tick({"ce-time": committed}, 100_000) is is_left
    assert not is_left_to_tick({}, 100_000)


def test_emulated_events_have_the_time_of_the_commit() -> None:
    headers = event_headers("team", "vision", MAIL_PATH)
    assert seconds_of_sender(headers, time.time() + 60.0) == 0.0
    assert seconds_of_sender(headers, 0.0) == SENDER_SECONDS


def test_waiting_call_occupies_no_thread() -> None:
    pauses: list[float] = []

    async def answer_both() -> tuple[int, int]:
        other_is_answered = asyncio.Event()

        async def wait_for_other(seconds: float) -> None:
            pauses.append(seconds)
            await other_is_answered.wait()

        function = Function(
            Telemetry("advance"),
            lambda call: 204,
            threads=1,
            pause=lambda headers: float(headers["early"]),
            sleep=wait_for_other,
        )
        waits = asyncio.create_task(status_of(function, "POST", {"early": "0.25"}))
        status = await status_of(function, "POST", {"early": "0"})
        assert not waits.done()
        other_is_answered.set()
        return status, await waits

    assert asyncio.run(answer_both()) == (204, 204)
    assert pauses == [0.25]


@pytest.mark.parametrize(
    ("headers", "span"),
    [
        # The span in the header is a decimal number: 26 is 0x1a.
        ({"x-cloud-trace-context": f"{TRACE}/26;o=1"}, "000000000000001a"),
        ({"x-cloud-trace-context": TRACE}, None),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, "00f067aa0ba902b7"),
    ],
)
def test_log_line_has_the_trace_of_the_request(headers: Mapping[str, str], span: str) -> None:
    fields = trace_fields(headers, "team")
    assert fields["logging.googleapis.com/trace"] == f"projects/team/traces/{TRACE}"
    assert fields.get("logging.googleapis.com/spanId") == span
    assert trace_fields({"traceparent": "of nobody"}, "team") == {}


def test_log_line_has_a_severity_and_no_secret() -> None:
    record = logging.LogRecord("a", logging.WARNING, "", 0, "Bearer abc", (), None)
    record.fields = {"status": 500, "severity": "of a field"}
    line = json.loads(CloudLines("api").format(record))
    assert (line["severity"], line["message"]) == ("WARNING", "Bearer REDACTED")
    assert (line["status"], line["logging.googleapis.com/labels"]) == (500, {"service": "api"})


def minutes() -> int:
    """Return a remaining time of ten minutes, in ms, which is enough for all calls."""
    return 600_000


def test_calls_during_a_pass_share_the_next_pass() -> None:
    passes, batches, runs = SharedPass(), list[list[str]](), threading.Event()
    go_on = threading.Event()

    def run(partitions: Collection[str]) -> bool:
        batches.append(sorted(partitions))
        runs.set()
        assert go_on.wait(ANSWER_SECONDS_MAX)
        return len(batches) == 1

    with ThreadPoolExecutor() as callers:
        first = callers.submit(passes.join, "jobs#a", run, minutes)
        assert runs.wait(ANSWER_SECONDS_MAX)
        others = [callers.submit(passes.join, name, run, minutes) for name in ("jobs#b", "notices")]
        wait_until(lambda: passes.waiting == {"jobs#b", "notices"})
        go_on.set()
        assert first.result(ANSWER_SECONDS_MAX)
        assert [other.result(ANSWER_SECONDS_MAX) for other in others] == [False, False]
    assert batches == [["jobs#a"], ["jobs#b", "notices"]]


def test_failed_pass_fails_only_the_sharing_calls() -> None:
    passes, runs, go_on = SharedPass(), threading.Event(), threading.Event()

    def block(partitions: Collection[str]) -> bool:
        runs.set()
        return go_on.wait(ANSWER_SECONDS_MAX)

    def fail(partitions: Collection[str]) -> bool:
        raise RuntimeError("it is broken")

    with ThreadPoolExecutor() as callers:
        callers.submit(passes.join, "a", block, minutes)
        assert runs.wait(ANSWER_SECONDS_MAX)
        both = [callers.submit(passes.join, name, fail, minutes) for name in ("b", "c")]
        wait_until(lambda: passes.waiting == {"b", "c"})
        go_on.set()
        errors = {type(future.exception(ANSWER_SECONDS_MAX)) for future in both}
    assert errors == {RuntimeError, PassFailed}
    assert passes.join("d", lambda partitions: True, minutes)


def test_call_without_time_starts_no_pass() -> None:
    passes, batches = SharedPass(), list[list[str]]()

    def run(partitions: Collection[str]) -> bool:
        batches.append(sorted(partitions))
        return True

    assert not passes.join("jobs#a", run, lambda: RESERVE_MS - 1)
    assert passes.join("jobs#b", run, lambda: RESERVE_MS)
    assert batches == [["jobs#b"]]


def test_call_stops_waiting_for_a_long_pass() -> None:
    passes, runs, go_on = SharedPass(), threading.Event(), threading.Event()
    batches = list[list[str]]()

    def run(partitions: Collection[str]) -> bool:
        batches.append(sorted(partitions))
        runs.set()
        return go_on.wait(ANSWER_SECONDS_MAX)

    with ThreadPoolExecutor() as callers:
        first = callers.submit(passes.join, "jobs#a", run, minutes)
        assert runs.wait(ANSWER_SECONDS_MAX)
        # The call's own pass would be the next, but the time ends before the running pass does.
        assert not passes.join("jobs#b", run, lambda: RESERVE_MS + 1)
        # A call that shares the next pass stops waiting at the call's own time limit, too.
        behind = callers.submit(passes.join, "jobs#d", run, minutes)
        wait_until(lambda: passes.waiting == {"jobs#d"})
        assert not passes.join("jobs#e", run, lambda: RESERVE_MS + 1)
        go_on.set()
        assert first.result(ANSWER_SECONDS_MAX)
        assert behind.result(ANSWER_SECONDS_MAX)
    assert batches == [["jobs#a"], ["jobs#d", "jobs#e"]]


def test_refuses_a_pool_of_an_unavailable_cloud() -> None:
    with pytest.raises(ConfigurationError, match="no provider aws; it has gcp"):
        GcpAdapters().cloud_provider(ProvisionerSettings("aws"))


class AwayTable(MemoryTable):
    """A table that answers no query."""

    def query(self, partition: str, first: str, last: str, **options: Any) -> Page:
        raise Unavailable("throttled")


def test_advance_needs_time_and_a_table() -> None:
    engine = Engine(MemoryTable(), lambda: 1_000, UNHURRIED)
    engine.advance_until_idle = lambda *_, **__: None  # type: ignore[method-assign]
    engine.post_message(POOL, PoolConfigured("gpus"), sender="somebody")
    del engine.advance_until_idle
    with pytest.raises(NotAdvanced):
        advance_receiver(engine, POOL, lambda: RESERVE_MS)
    assert advance_receiver(engine, POOL, lambda: RESERVE_MS + 60_000)
    assert engine.read_state(POOL) is not None
    assert not advance_receiver(engine, POOL, lambda: RESERVE_MS + 60_000)
    # With `looks_first=False`, the actor is loaded without a read of the mailbox.
    engine.has_mail = lambda address: pytest.fail("looked")  # type: ignore[method-assign]
    assert advance_receiver(engine, POOL, lambda: RESERVE_MS + 60_000, looks_first=False)
    away = Engine(AwayTable(), lambda: 1_000, UNHURRIED)
    with pytest.raises(NotAdvanced):
        advance_receiver(away, POOL, lambda: RESERVE_MS + 60_000)


@pytest.fixture
def serve() -> Iterator[Callable[[int | None], str]]:
    """A function that starts a server and returns its URL.

    The server answers with the given status, or not at all for None.
    """
    servers: list[HTTPServer] = []
    ended = threading.Event()

    def start(status: int | None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if status is None:
                    ended.wait(ANSWER_SECONDS_MAX)
                else:
                    self.send_response(status)
                    self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing is logged."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    ended.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def test_invocation_waits_only_for_the_start(serve: Callable[[int | None], str]) -> None:
    invoke_url(serve(204))
    invoke_url(serve(None), answer_seconds_max=0.2)
    with pytest.raises(OSError, match="it answered 403"):
        invoke_url(serve(403))
    with pytest.raises(OSError, match="was not invoked"):
        invoke_url("http://127.0.0.1:9")


def test_prices_come_from_the_regions_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    def sku(part: str, nanos: int, unit: str) -> dict[str, Any]:
        rates = [{"unitPrice": {"units": "0", "nanos": nanos}}]
        return {
            "description": f"N1 Predefined Instance {part} running in Americas",
            "category": {"usageType": "OnDemand"},
            "serviceRegions": ["us-east1"],
            "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": rates}}],
        }

    page = {"skus": [sku("Core", 30_000_000, "h"), sku("Ram", 4_000_000, "GiBy.h")]}

    class Catalogue(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    variables = {
        **{"API_URL": "https://api.test", "CLUSTER": "detcloud-vision", "NETWORK": "{}"},
        **{"OBJECTS": "objects", "PROJECT": "team", "REGION": "us-east1"},
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"DETCLOUD_{name}", value)
    with HTTPServer(("127.0.0.1", 0), Catalogue) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        place = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("DETCLOUD_BILLING_ENDPOINT", place)
        n1 = Offering("n1", "n1-standard-8", "", Market.ON_DEMAND, 1)
        section = '{"boot_disk_type": "pd-balanced", "boot_disk_size": 73}'
        settings = ProvisionerSettings("gcp", offerings=(n1,), section=section)
        (priced,) = GcpAdapters().cloud_provider(settings).offerings()
        server.shutdown()
    # 8 vCPUs of 0.03 $, 30 GB of 0.004 $, and 73 GiB of a disk of 0.1 $ for 730 hours.
    assert priced.price_per_hour == pytest.approx(8 * 0.03 + 30 * 0.004 + 0.01)


def test_client_address_is_the_last_forwarded_address() -> None:
    peer = ("169.254.1.1", 4000)
    claimed = {"x-forwarded-for": "10.0.0.1, 203.0.113.7"}
    assert client_address(claimed, peer) == ("203.0.113.7", 0)
    assert client_address({"x-forwarded-for": "2001:db8::1"}, peer) == ("2001:db8::1", 0)
    assert client_address({}, peer) == peer


def test_request_loses_the_trace_and_the_peer_of_googles_front() -> None:
    own = (b"x-detcloud-traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode())
    forwarded = (b"x-forwarded-for", b"203.0.113.7")
    front = (b"traceparent", f"00-{TRACE}-53995c3f42cd8ad8-01".encode())
    given = {"type": "http", "path": "/", "headers": [front, own, forwarded], "client": ("::1", 4)}
    expected = {"headers": [own, forwarded], "client": ("203.0.113.7", 0)}
    assert caller_scope(given) == {"type": "http", "path": "/", **expected}
    assert given["client"] == ("::1", 4)
