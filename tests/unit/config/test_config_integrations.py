"""The choice of webhooks in the section `integrations`."""

from typing import Any

import pytest

from control_plane.actors.event_routes import WebhookChoice
from control_plane.config.integrations import choice_findings, webhook_choice
from detcloud.shared.masking import MASK, mask_secrets

CHOICE = {"webhook_id": [1, 2], "webhook_name": ["chat"], "exclude": False}


@pytest.mark.parametrize("name", ["webhooks", "webhook"])
def test_choice_has_ids_and_names(name: str) -> None:
    assert webhook_choice({name: CHOICE}) == WebhookChoice((1, 2), ("chat",))
    assert list(choice_findings({name: CHOICE})) == []


@pytest.mark.parametrize("integrations", [None, {}, {"pachyderm": {"token": "x"}}])
def test_other_integrations_are_no_choice(integrations: Any) -> None:
    assert webhook_choice(integrations) is None
    assert list(choice_findings(integrations)) == []


def test_absent_fields_choose_nothing() -> None:
    choice = {"webhook_id": None, "webhook_name": None, "exclude": None}
    assert webhook_choice({"webhooks": choice}) == WebhookChoice()
    assert webhook_choice({"webhooks": {"exclude": True}}) == WebhookChoice(exclude=True)
    assert list(choice_findings({"webhooks": choice})) == []


@pytest.mark.parametrize(
    ("choice", "place"),
    [
        ("x", ("integrations", "webhooks")),
        ({"webhook_id": 1}, ("integrations", "webhooks", "webhook_id")),
        ({"webhook_id": ["1"]}, ("integrations", "webhooks", "webhook_id")),
        ({"webhook_id": [True]}, ("integrations", "webhooks", "webhook_id")),
        ({"webhook_id": [1] * 51}, ("integrations", "webhooks", "webhook_id")),
        ({"webhook_name": [1]}, ("integrations", "webhooks", "webhook_name")),
        ({"exclude": "yes"}, ("integrations", "webhooks", "exclude")),
        ({"url": "https://example.com/"}, ("integrations", "webhooks", "url")),
    ],
)
def test_wrong_choice_is_a_finding(choice: Any, place: tuple[str, ...]) -> None:
    assert [finding.loc for finding in choice_findings({"webhooks": choice})] == [place]


def test_choice_is_shown_and_addresses_are_masked() -> None:
    assert mask_secrets({"integrations": {"webhooks": CHOICE}}) == {
        "integrations": {"webhooks": CHOICE}
    }
    secret = {"webhooks": {"url": "https://example.com/"}, "webhook": "https://example.com/"}
    assert mask_secrets(secret) == {"webhooks": MASK, "webhook": MASK}
