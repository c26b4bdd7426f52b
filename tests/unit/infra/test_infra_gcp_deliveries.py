"""The acknowledgement deadline of event deliveries, which is set after the stack is created."""

from infra.gcp.deliveries import DELIVERY_SECONDS, extend_deliveries
from infra.gcp.functions import SIZES
from infra.gcp.google_api import GoogleError
from infra.gcp.names import Names
from tests.unit.infra.google_answers import Answer, Answers

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
MAIL = "projects/acme-ml/subscriptions/eventarc-us-central1-detcloud-vision-mail-sub-7"
INTENTS = "projects/acme-ml/subscriptions/eventarc-us-central1-detcloud-vision-intents-sub-8"


def triggers(seconds: int) -> Answers:
    """The two triggers, with subscriptions that have a deadline of `seconds`."""
    table: dict[tuple[str, str], Answer] = {}
    for name, subscription in (("mail", MAIL), ("intents", INTENTS)):
        trigger = {"transport": {"pubsub": {"subscription": subscription}}}
        table["GET", f"triggers/detcloud-vision-{name}"] = trigger
        table["GET", subscription] = {"ackDeadlineSeconds": seconds}
        table["PATCH", subscription] = {}
    return Answers(table)


def test_delivery_deadline_becomes_the_pubsub_maximum() -> None:
    api, lines = triggers(10), list[str]()
    extend_deliveries(NAMES, api, lines.append)
    patches = [(url, body) for method, url, body in api.calls if method == "PATCH"]
    assert [url for url, _ in patches] == [
        f"https://pubsub.googleapis.com/v1/{name}" for name in (MAIL, INTENTS)
    ]
    assert patches[0][1] == {
        "subscription": {"name": MAIL, "ackDeadlineSeconds": 600},
        "updateMask": "ackDeadlineSeconds",
    }
    assert len(lines) == 2


def test_extended_deadline_is_not_patched_again() -> None:
    api, lines = triggers(600), list[str]()
    extend_deliveries(NAMES, api, lines.append)
    assert (api.urls_of("PATCH"), lines) == ([], [])


def test_refused_trigger_is_a_warning_and_the_next_is_extended() -> None:
    api, lines = triggers(10), list[str]()
    api.table["GET", "triggers/detcloud-vision-mail"] = GoogleError(403, "not allowed")
    extend_deliveries(NAMES, api, lines.append)
    assert "warning: events of the trigger detcloud-vision-mail" in lines[0]
    assert "not allowed" in lines[0]
    assert len(api.urls_of("PATCH")) == 1


def test_event_functions_end_within_the_delivery_deadline() -> None:
    assert max(SIZES[name].seconds_max for name in ("advance", "wake")) < DELIVERY_SECONDS
