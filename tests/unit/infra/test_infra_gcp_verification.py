"""The self-test's calls of Google Cloud, against a table of answers."""

import json
from typing import Any

import pytest

from infra.gcp.google_api import GoogleError
from infra.gcp.names import Names
from infra.gcp.verification import GcpVerifier
from infra.verification import VerifyFailed, run_part
from tests.unit.infra.google_answers import Answers

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
ZONE, OWN = "us-central1-a", "detcloud-vision--vm-1"
INSTANCE = f"zones/{ZONE}/instances/{OWN}"
LISTED = {"items": {f"zones/{ZONE}": {"instances": [{"name": OWN, "status": "RUNNING"}]}}}


def policy(name: str, **fields: Any) -> dict[str, Any]:
    return {"displayName": NAMES.part(name), "notificationChannels": ["c"], **fields}


def alarm_results(*policies: dict[str, Any]) -> list[tuple[str, str]]:
    answers = Answers({("GET", "/alertPolicies"): {"alertPolicies": list(policies)}})
    return [(check.result, check.reason) for check in GcpVerifier(NAMES, answers).check_alarms()]


def test_policies_in_order_are_skipped_because_none_can_be_triggered() -> None:
    results = alarm_results(policy("errors"), policy("minute"))
    assert [result for result, _ in results] == ["skipped", "skipped"]
    assert "Google has no call that triggers" in results[0][1]


def test_missing_and_disabled_policies_fail() -> None:
    assert alarm_results(policy("minute", enabled=False)) == [
        ("failed", "the alert policy does not exist"),
        ("failed", "the alert policy is disabled"),
    ]


def test_policy_without_a_channel_names_the_setting() -> None:
    [first, _] = alarm_results(policy("errors", notificationChannels=[]), policy("minute"))
    assert first == ("skipped", "the alert policy has no channel: set alarmEmail")


def test_notice_is_a_maintenance_event() -> None:
    answers = Answers({("POST", f"{INSTANCE}/simulateMaintenanceEvent"): {}})
    sent = run_part(GcpVerifier(NAMES, answers), "notice", [f"{ZONE}/{OWN}"])
    assert not sent["simulated"]


def test_refused_notice_is_an_error() -> None:
    refusal = GoogleError(403, "denied")
    answers = Answers({("POST", f"{INSTANCE}/simulateMaintenanceEvent"): refusal})
    with pytest.raises(VerifyFailed, match="the maintenance event failed: denied"):
        GcpVerifier(NAMES, answers).send_notice(OWN, ZONE, "")


def test_only_listed_instances_are_deleted() -> None:
    answers = Answers({("GET", "aggregated/instances"): LISTED, ("DELETE", INSTANCE): {}})
    run_part(GcpVerifier(NAMES, answers), "end", [f"{ZONE}/{OWN}", f"{ZONE}/other"])
    [url] = answers.urls_of("DELETE")
    assert url.endswith(INSTANCE)


def test_listed_instance_has_its_removal_command() -> None:
    answers = Answers({("GET", "aggregated/instances"): LISTED})
    [listed] = run_part(GcpVerifier(NAMES, answers), "instances")["instances"]
    assert (listed["zone"], listed["state"]) == (ZONE, "running")
    assert listed["removal"] == (
        f"gcloud compute instances delete {OWN} --zone {ZONE} --project acme-ml"
    )


def test_place_masks_the_project_and_its_number() -> None:
    place = run_part(GcpVerifier(NAMES, Answers({})), "place")
    assert (place["account"], place["private"]) == ("acme-ml", ("123456789012",))


def test_prices_need_no_call() -> None:
    answers = Answers({})
    offering = {"instance_type": "g2-standard-4", "zone": ZONE, "market": "spot", "slots": 1}
    provider = json.dumps({"type": "gcp", "offerings": [offering]})
    verifier = GcpVerifier(NAMES, answers)
    [priced] = run_part(verifier, "prices", providers=[provider])["offerings"][0]
    assert priced["price_per_hour"] > 0
    assert answers.calls == []
