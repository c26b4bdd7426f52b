"""The code in docs/webhooks.md."""

import re
import time
from pathlib import Path
from typing import Any

import yaml

from control_plane.actors.event_routes import EventType, WebhookChoice
from control_plane.config.integrations import (
    choice_findings,
    commit_findings,
    source_commit,
    webhook_choice,
)
from control_plane.config.webhooks import Webhooks
from control_plane.webhooks.formats.registry import FORMATS
from control_plane.webhooks.signatures import new_secret, signature_headers

PAGE = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_code_verifies_signatures() -> None:
    names: dict[str, Any] = {}
    (code,) = [block for block in blocks("python") if "is_genuine" in block]
    exec(code, names)
    is_genuine, secret, body = names["is_genuine"], new_secret(), b'{"a":1}'
    headers = dict(signature_headers(secret, "id", int(time.time()), body))
    assert is_genuine(secret, headers, body)
    assert not is_genuine(secret, headers, b"{}")
    assert not is_genuine(new_secret(), headers, body)
    assert not is_genuine(secret, {**headers, "webhook-id": "other"}, body)
    old = dict(signature_headers(secret, "id", int(time.time()) - 301, body))
    assert not is_genuine(secret, old, body)


def test_page_names_every_trigger_and_format() -> None:
    for event_type in EventType:
        assert event_type is EventType.TEST or f"`{event_type}" in PAGE
    for name in FORMATS:
        assert f"`{name}`" in PAGE


def test_configuration_names_a_webhook() -> None:
    (code,) = [block for block in blocks("yaml") if "webhook_name" in block]
    integrations = yaml.safe_load(code)["integrations"]
    assert list(choice_findings(integrations)) == []
    assert webhook_choice(integrations) == WebhookChoice(names=("team-chat",))


def test_configuration_states_a_commit() -> None:
    (code,) = [block for block in blocks("yaml") if "github" in block]
    integrations = yaml.safe_load(code)["integrations"]
    assert list(commit_findings(integrations)) == []
    stated = source_commit(integrations)
    assert stated is not None
    assert (stated.repository, len(stated.commit)) == ("team/digits", 40)


def test_configurations_of_the_cluster_are_valid() -> None:
    sections = [yaml.safe_load(block) for block in blocks("yaml") if block.startswith("webhooks:")]
    parsed = [Webhooks.model_validate(section["webhooks"]) for section in sections]
    assert [one.mail_domains for one in parsed] == [("example.com", "ml.example.com"), ()]
