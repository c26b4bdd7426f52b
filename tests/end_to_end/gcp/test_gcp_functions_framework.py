"""Google's functions-framework compared with ours.

Both get the same requests, and our tick also runs in Google's server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import urllib3

from control_plane.actors import addresses
from control_plane.actors.messages.pool import BudgetChecked
from control_plane.engine.engine import Engine
from control_plane.engine.mailbox import MAIL
from control_plane.gcp.row_documents import CREATED, document_path
from control_plane.state.table import Key
from lambdas.clock import now_ms
from lambdas.gcp.row_events import SENDER_SECONDS, new_row_path, seconds_of_sender
from tests.conftest import require
from tests.emulators.cloud_run import run_function
from tests.emulators.eventarc import Trigger, event_headers
from tests.emulators.forwarding import ForwardingHandler
from tests.emulators.functions_framework import EventFunction, event_function, tick_function
from tests.emulators.http_server import serve_requests
from tests.emulators.server import free_port
from tests.end_to_end.cluster_steps import IMPATIENT, wait_until
from tests.engine_timing import UNHURRIED
from tests.patience import ANSWER_SECONDS_MAX

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

Headers = Mapping[str, str]

POOL_ADDRESS = addresses.pool(IMPATIENT)
HEADERS = event_headers("tests-1", "vision", document_path(Key(POOL_ADDRESS, f"{MAIL}0#gone")))
# The same event as a single document, in CloudEvents' structured mode.
WHOLE = {
    "specversion": "1.0",
    "id": HEADERS["ce-id"],
    "source": HEADERS["ce-source"],
    "type": HEADERS["ce-type"],
    "document": HEADERS["ce-document"],
}
STRUCTURED = {"content-type": "application/cloudevents+json"}
BATCHED = {"content-type": "application/cloudevents-batch+json"}


def without(name: str) -> Headers:
    return {key: value for key, value in HEADERS.items() if key != name}


# Requests that both answer alike, with the class of the status.
ALIKE: Mapping[str, tuple[Headers, bytes, int]] = {
    "an event": (HEADERS, b"", 2),
    "an event with the document": (HEADERS, b"\x0a\x03abc", 2),
    "no id": (without("ce-id"), b"", 4),
    "no source": (without("ce-source"), b"", 4),
    "no type": (without("ce-type"), b"", 4),
    "no version": (without("ce-specversion"), b"", 4),
    "a version to come": ({**HEADERS, "ce-specversion": "2.0"}, b"", 4),
    "no event": ({}, b"", 4),
    "no document in structured mode": (STRUCTURED, b"", 4),
    "what is no document in structured mode": (STRUCTURED, b"{", 4),
}
# Requests that Google's framework accepts and ours refuses, with the classes of both statuses.
UNLIKE: Mapping[str, tuple[Headers, bytes, int, int]] = {
    # Eventarc sends an event of Firestore in headers alone, and our function reads only headers.
    "structured mode": (STRUCTURED, json.dumps(WHOLE).encode(), 2, 4),
    # Google's framework fails; Eventarc would repeat the event after either answer.
    "batched mode": (BATCHED, json.dumps([WHOLE]).encode(), 5, 4),
    # Eventarc's events have version 1.0.
    "a version of former times": ({**HEADERS, "ce-specversion": "0.3"}, b"", 2, 4),
    # Our function accepts only its own rows; Google's framework accepts any event.
    "another type": ({**HEADERS, "ce-type": CREATED.replace("created", "deleted")}, b"", 2, 4),
    "an empty type": ({**HEADERS, "ce-type": ""}, b"", 2, 4),
    "no document named": (without("ce-document"), b"", 2, 4),
}


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventFunction]:
    """Yield a function of events, served by Google's framework."""
    with event_function(tmp_path_factory.mktemp("google")) as function:
        yield function


def post(url: str, headers: Headers, body: bytes) -> int:
    """Return the status of a function's answer."""
    answer = urllib3.request(
        "POST", url, headers=dict(headers), body=body, timeout=ANSWER_SECONDS_MAX, retries=False
    )
    return answer.status


def advanced_actors(deployment: GcpDeployment) -> set[object]:
    """Return the actors with messages that the deployed function processed."""
    lines = deployment.log_lines("advance")
    return {
        line.get("actor") for line in lines if line["message"] == "served" and line.get("had_mail")
    }


def test_google_framework_and_ours_read_the_same_row(
    deployment: GcpDeployment, google: EventFunction
) -> None:
    received: list[tuple[Headers, bytes]] = []

    class Recorder(ForwardingHandler):
        store = google.url

        def do_POST(self) -> None:
            body = self.read_body()
            received.append(({key.lower(): header for key, header in self.headers.items()}, body))
            self.forward(body)

    triggers = deployment.events.triggers
    with serve_requests(Recorder) as address:
        # A second trigger for the same events as ours.
        of_google = Trigger(triggers["advance"].pattern, f"http://{address}")
        triggers["google"] = of_google
        try:
            engine = Engine(deployment.table, now_ms, UNHURRIED)
            # The message is left to the deployed function.
            engine.advance_until_idle = lambda *_, **__: None  # type: ignore[method-assign]
            engine.post_message(POOL_ADDRESS, BudgetChecked(over_budget=False), sender="a test")
            wait_until(lambda: POOL_ADDRESS in advanced_actors(deployment), 20, "our function")
            wait_until(lambda: len(google.events()) > 0, 20, "Google's function")
        finally:
            del triggers["google"]
        wait_until(lambda: len(google.events()) == of_google.sent, 20, "all that was sent")
    assert of_google.refused == 0
    handed = {handed_event.attributes["id"]: handed_event for handed_event in google.events()}
    for headers, body in received:
        event = handed[headers["ce-id"]]
        path = new_row_path(headers, "advance")
        assert event.attributes["type"] == CREATED
        assert event.attributes["document"] == path
        assert event.attributes["subject"] == f"documents/{path}"
        database = f"databases/{deployment.outputs['database']}"
        assert event.attributes["source"].endswith(f"/projects/tests-1/{database}")
        # At the time of the commit the sender has all of its time left.
        committed = datetime.fromisoformat(event.attributes["time"]).timestamp()
        assert seconds_of_sender(headers, committed) == pytest.approx(SENDER_SECONDS)
        assert seconds_of_sender(headers, committed + SENDER_SECONDS) == pytest.approx(0, abs=1e-5)
        assert (event.data or b"") == body


def test_google_framework_passes_the_document_that_ours_ignores(google: EventFunction) -> None:
    assert post(google.url, HEADERS, b"\x0a\x03abc") // 100 == 2
    assert google.events()[-1].data == b"\x0a\x03abc"


def test_our_server_refuses_every_request_that_google_refuses(
    deployment: GcpDeployment, google: EventFunction, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # A separate function: a refusal that the deployed function logs would be an error of the
    # cluster.
    url, folder = f"http://127.0.0.1:{free_port()}", tmp_path_factory.mktemp("ours")
    environment = deployment.functions.environments["advance"]
    with run_function("advance", url, folder, environment):
        for name, (headers, body, status) in ALIKE.items():
            theirs, ours = post(google.url, headers, body), post(url, headers, body)
            assert (theirs // 100, ours // 100) == (status, status), (name, theirs, ours)
        for name, (headers, body, *both) in UNLIKE.items():
            theirs, ours = post(google.url, headers, body), post(url, headers, body)
            assert [theirs // 100, ours // 100] == both, (name, theirs, ours)
        get = urllib3.request("GET", url, retries=False, timeout=ANSWER_SECONDS_MAX)
        assert get.status == urllib3.request("GET", google.url, retries=False).status == 405


def test_tick_runs_in_googles_server(
    deployment: GcpDeployment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require("opentelemetry.exporter.otlp.proto.http")
    from tests.emulators.otlp_receiver import serve_otlp

    folder = tmp_path_factory.mktemp("tick")
    with ExitStack() as stack:
        collector = stack.enter_context(serve_otlp())
        own = deployment.functions.environments["tick"]
        environment = {**own, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        url = stack.enter_context(tick_function(folder, environment))
        assert post(url, {}, b"") == 204
        assert "detcloud_slots" in collector.metrics
        # The event of a row is for `wake`, which gets the event after an upgrade.
        row = {**HEADERS, "ce-document": document_path(Key("notices", "i-gone"))}
        assert post(url, row, b"") == 429
        assert urllib3.request("GET", url, retries=False, timeout=ANSWER_SECONDS_MAX).status == 405
    lines = [json.loads(line) for line in (folder / "tick.log").read_text().splitlines()]
    assert [item["message"] for item in lines if item["message"] == "ticked"] == ["ticked"]
