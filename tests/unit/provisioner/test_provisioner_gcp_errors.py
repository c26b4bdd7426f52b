"""The classification of Compute Engine's errors."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import urllib3
from google.auth.exceptions import DefaultCredentialsError, TransportError
from google.oauth2.credentials import Credentials

from provisioner.clouds.gcp import google_api
from provisioner.clouds.gcp.errors import (
    CODES,
    answer_error,
    cloud_error,
    error_text,
    operation_error,
)
from provisioner.clouds.gcp.google_api import GoogleApi, create_compute_api
from provisioner.clouds.provider import (
    CloudError,
    ConfigurationError,
    NoCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
)
from tests.unit.provisioner.gce_account import compute_api


def answer(reason: str, message: str = "m", **more: object) -> dict[str, object]:
    return {
        "error": {"message": message, "errors": [{"reason": reason, "message": message}]} | more
    }


@pytest.mark.parametrize(
    ("status", "reason", "cls"),
    [
        # Google uses status 403 for all of these reasons.
        (403, "quotaExceeded", QuotaExceeded),
        (403, "rateLimitExceeded", ThrottlingError),
        (403, "forbidden", NotAllowed),
        (403, "accessNotConfigured", NotAllowed),
        (403, "unheardOf", NotAllowed),
        (401, "authError", NotAllowed),
        (429, "unheardOf", ThrottlingError),
        # Both have status 503: a definite refusal, and an unknown outcome.
        (503, "insufficientCapacity", NoCapacity),
        (503, "backendError", OutcomeUnknown),
        (500, "unheardOf", OutcomeUnknown),
        (400, "invalid", ConfigurationError),
        (404, "notFound", ConfigurationError),
        (412, "conditionNotMet", ConfigurationError),
        (409, "unheardOf", CloudError),
        # The named resource is being created or deleted; a repeated request may succeed.
        (400, "resourceNotReady", CloudError),
        # The outcome of an abandoned call is unknown.
        (408, "unheardOf", OutcomeUnknown),
        (499, "cancelled", OutcomeUnknown),
    ],
)
def test_reason_takes_precedence_over_status(
    status: int, reason: str, cls: type[CloudError]
) -> None:
    error = answer_error(status, answer(reason))
    assert type(error) is cls
    assert str(error) == f"{reason}: m"


@pytest.mark.parametrize(
    ("status", "reason", "message", "remedy"),
    [
        (
            412,
            "conditionNotMet",
            "Constraint constraints/compute.vmExternalIpAccess violated for project 1. Add",
            "set detcloud:privateSubnets: true",
        ),
        (
            412,
            "conditionNotMet",
            "Constraint constraints/compute.requireShieldedVm violated for project projects/p1. "
            "Secure Boot is not enabled in the 'shielded_instance_config' field.",
            "set enableSecureBoot: true",
        ),
        (
            412,
            "conditionNotMet",
            "Location ZONE:us-east1-b violates constraint constraints/gcp.resourceLocations on the "
            "resource projects/p1/zones/us-east1-b/instances/vm.",
            "use a region or zone that the policy allows",
        ),
        (
            412,
            "",
            'Operation denied by custom org policy: ["customConstraints/custom.noGpus": "No"].',
            "(custom.noGpus) refuses the launch: change the pool as the policy requires",
        ),
        (
            403,
            "forbidden",
            "Required 'compute.subnetworks.use' permission for 'projects/host/regions/r/x'",
            "grant roles/compute.networkUser on the subnetwork",
        ),
        (
            403,
            "forbidden",
            "Required 'compute.instances.setTags' permission for 'projects/p1/zones/z/x'",
            "deploy the stack again",
        ),
        (
            400,
            "badRequest",
            "Cloud KMS error when using key projects/p1/locations/l/keyRings/r/cryptoKeys/k",
            "let Compute Engine's service agent use the key",
        ),
    ],
)
def test_refusal_begins_with_the_next_step(
    status: int, reason: str, message: str, remedy: str
) -> None:
    error = answer_error(status, answer(reason, message))
    assert isinstance(error, ConfigurationError | NotAllowed)
    code, _, text = str(error).partition(": ")
    assert code == (reason or str(status))
    assert remedy in text
    # The health of an offering keeps 300 characters.
    assert text.index(remedy) < 200
    assert f"Google's message: {message}"[:60] in text


@pytest.mark.parametrize(
    "content",
    [None, [], {"error": "x"}, {}, {"error": {"errors": 7}}, {"error": {"errors": {"a": "b"}}}],
)
def test_malformed_response_is_classified_by_status(content: object) -> None:
    assert type(answer_error(502, content)) is OutcomeUnknown
    assert type(answer_error(403, content)) is NotAllowed


def test_response_without_reasons_is_classified_by_status_name() -> None:
    error = answer_error(403, {"error": {"status": "PERMISSION_DENIED", "message": "No."}})
    assert (type(error), str(error)) == (NotAllowed, "PERMISSION_DENIED: No.")


def test_best_error_to_retry_counts() -> None:
    codes = ["INVALID_FIELD_VALUE", "QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED"]
    error = operation_error([{"code": code, "message": code.lower()} for code in codes])
    assert type(error) is NoCapacity
    assert str(error) == "ZONE_RESOURCE_POOL_EXHAUSTED: zone_resource_pool_exhausted"


def test_cause_takes_precedence_over_min_count_error() -> None:
    summary = {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "Requested minimum count of 4 VMs"}
    assert type(operation_error([summary])) is NoCapacity
    quota = {"code": "QUOTA_EXCEEDED", "message": "Quota 'CPUS' exceeded."}
    assert type(operation_error([summary, quota])) is QuotaExceeded
    assert type(operation_error([])) is NoCapacity


def test_operation_error_is_never_outcome_unknown() -> None:
    for code in ("INTERNAL_ERROR", "UNHEARD_OF"):
        assert type(operation_error([{"code": code}])) is CloudError


def test_every_code_has_a_class() -> None:
    for code, cls in CODES.items():
        assert type(cloud_error(code, "", 418)) is cls


def test_error_text_is_short_and_masked() -> None:
    text = error_text("invalid", "a\n b ya29.a0Af_by-x.y " + "z" * 500)
    assert text.startswith("invalid: a b ******** zzz")
    assert len(text) == len("invalid: ") + 400 + len("...")


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (DefaultCredentialsError("of /home/me/key.json"), NotAllowed),
        (TransportError("at 10.0.0.1", retryable=True), OutcomeUnknown),
    ],
)
def test_credential_errors_name_only_their_kind(error: Exception, cls: type[CloudError]) -> None:
    def refuse(method: str, url: str) -> dict[str, str]:
        raise error

    api = GoogleApi(urllib3.PoolManager(), refuse, "http://127.0.0.1:9")
    with pytest.raises(cls, match=f"no access to Google Cloud: {type(error).__name__}$") as caught:
        api.get("p1/aggregated/instances")
    assert caught.value.__cause__ is None


def test_request_has_the_environments_token(monkeypatch: pytest.MonkeyPatch) -> None:
    requested_scopes: list[object] = []

    def find(scopes: object) -> tuple[Credentials, str]:
        requested_scopes.append(scopes)
        return Credentials(token="ya29.x"), "p1"

    monkeypatch.delenv("DETCLOUD_COMPUTE_ENDPOINT", raising=False)
    monkeypatch.setattr(google_api, "default_credentials", find)
    api = google_api.create_compute_api()
    # Credentials are loaded once, at the first call.
    assert requested_scopes == []
    for _ in range(2):
        headers = api._authorize("GET", "https://compute.googleapis.com/x")
        assert headers["authorization"] == "Bearer ya29.x"
    assert requested_scopes == [("https://www.googleapis.com/auth/cloud-platform",)]
    api.close()


def test_refused_connection_is_outcome_unknown() -> None:
    with pytest.raises(OutcomeUnknown, match="did not answer: NewConnectionError"):
        # No process listens on port 9.
        compute_api("http://127.0.0.1:9").get("p1/aggregated/instances")


def test_replaced_endpoint_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append({"path": self.path, **dict(self.headers)})
            body = json.dumps({"items": {}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.handle_request, daemon=True)
    thread.start()
    monkeypatch.setenv("DETCLOUD_COMPUTE_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    api = create_compute_api()
    assert api.get("p1/aggregated/instances", filter='(name = "a")') == {"items": {}}
    thread.join()
    server.server_close()
    api.close()
    (call,) = received
    assert call["path"].startswith("/compute/v1/projects/p1/aggregated/instances?prettyPrint=false")
    assert "Authorization" not in call
