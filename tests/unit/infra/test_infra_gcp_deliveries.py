"""The time that a delivery may take, which is set once the stack is made."""

from infra.gcp.deliveries import DELIVERY_SECONDS, extend_deliveries
from infra.gcp.functions import SIZES
from infra.gcp.google_api import GoogleError
from infra.gcp.names import Names
from tests.unit.infra.google_answers import Answer, Answers

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
MAIL = "projects/acme-ml/subscriptions/eventarc-us-central1-detcloud-vision-mail-sub-7"
INTENTS = "projects/acme-ml/subscriptions/eventarc-us-central1-detcloud-vision-intents-sub-8"


def triggers(seconds: int) -> Answers:
    """The two triggers, with subscriptions that wait so long."""
    table: dict[tuple[str, str], Answer] = {}
    for name, subscription in (("mail", MAIL), ("intents", INTENTS)):
        trigger = {"transport": {"pubsub": {"subscription": subscription}}}
        table["GET", f"triggers/detcloud-vision-{name}"] = trigger
        table["GET", subscription] = {"ackDeadlineSeconds": seconds}
        table["PATCH", subscription] = {}
    return Answers(table)


def test_a_delivery_may_take_as_long_as_pubsub_allows() -> None:
    api, said = triggers(10), list[str]()
    extend_deliveries(NAMES, api, said.append)
    patches = [(url, body) for method, url, body in api.calls if method == "PATCH"]
    assert [url for url, _ in patches] == [
        f"https://pubsub.googleapis.com/v1/{name}" for name in (MAIL, INTENTS)
    ]
    assert patches[0][1] == {
        "subscription": {"name": MAIL, "ackDeadlineSeconds": 600},
        "updateMask": "ackDeadlineSeconds",
    }
    assert len(said) == 2


def test_what_is_set_is_left_alone() -> None:
    api, said = triggers(600), list[str]()
    extend_deliveries(NAMES, api, said.append)
    assert (api.urls_of("PATCH"), said) == ([], [])


def test_what_google_refuses_is_told_and_the_rest_is_done() -> None:
    api, said = triggers(10), list[str]()
    api.table["GET", "triggers/detcloud-vision-mail"] = GoogleError(403, "not allowed")
    extend_deliveries(NAMES, api, said.append)
    assert "warning: events of the trigger detcloud-vision-mail" in said[0]
    assert "not allowed" in said[0]
    assert len(api.urls_of("PATCH")) == 1


def test_no_function_that_an_event_calls_takes_longer() -> None:
    assert max(SIZES[name].seconds_max for name in ("advance", "tick")) < DELIVERY_SECONDS
