"""The requests of each format."""

import json
from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.event_routes import EventCondition, EventType
from control_plane.actors.events import Event, event_row
from control_plane.webhooks.formats.message import Announcement
from control_plane.webhooks.formats.registry import FORMATS

TIME_MS = 1_800_000_000_500
EXPERIMENT = {
    "id": 7,
    "state": "ERROR",
    "name": "digits",
    "workspace": "Vision",
    "project": "Digits",
    "user": "ann",
    "resource_pool": "gpus",
}
EVENT = Event(
    EventType.EXPERIMENT_STATE_CHANGE,
    "experiment#7",
    3,
    "experiment 7 (digits) is ERROR",
    "it failed",
    EventCondition(state="ERROR"),
    {"experiment": EXPERIMENT},
)


def announce(event: Event = EVENT, page: str = "https://c.example") -> Announcement:
    return Announcement(event_row(event, (1,), TIME_MS), "https://r.example/path", "c1", page)


def body(name: str, announcement: Announcement) -> Any:
    request = FORMATS[name](announcement)
    assert request.headers["Content-Type"] == "application/json"
    # Receivers of Determined compute the signature from JSON without spaces.
    assert request.body == json.dumps(json.loads(request.body), separators=(",", ":")).encode()
    return json.loads(request.body)


def test_json_has_the_fields_of_determined() -> None:
    announcement = announce()
    payload = body("json", announcement)
    assert payload == {
        "event_id": announcement.event.id,
        "event_type": "EXPERIMENT_STATE_CHANGE",
        "timestamp": 1_800_000_000,
        "condition": {"state": "ERROR"},
        "event_data": {"experiment": EXPERIMENT},
        "time_ms": TIME_MS,
        "subject": "experiment#7",
        "number": 3,
        "title": "experiment 7 (digits) is ERROR",
        "text": "it failed",
        "cluster": "c1",
        "link": "https://c.example/ui/#/experiments/7",
    }


def test_slack_message_has_title_text_and_facts() -> None:
    message = body("slack", announce())
    title = "<https://c.example/ui/#/experiments/7|Experiment 7 (digits) is ERROR>"
    assert message["blocks"][0]["text"]["text"] == f"*{title}*"
    assert message["blocks"][1]["text"]["text"] == "it failed"
    (attachment,) = message["attachments"]
    assert attachment["color"] == "#cb2431"
    facts = attachment["blocks"][0]["elements"][0]["text"]
    assert "*Owner:* ann" in facts
    assert "*Pool:* gpus" in facts


def test_slack_text_mentions_nobody() -> None:
    message = body("slack", announce(replace(EVENT, title="<!channel> & <http://x|y>"), ""))
    assert "<" not in message["text"]
    assert message["text"] == "&lt;!channel&gt; &amp; &lt;http://x|y&gt;"


def test_teams_card_has_title_facts_and_link() -> None:
    message = body("teams", announce())
    (attachment,) = message["attachments"]
    card = attachment["content"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert card["body"][0]["text"] == "Experiment 7 \\(digits\\) is ERROR"
    assert card["body"][0]["color"] == "Attention"
    assert {"title": "Owner", "value": "ann"} in card["body"][-1]["facts"]
    assert card["actions"][0]["url"] == "https://c.example/ui/#/experiments/7"


def test_discord_embed_mentions_nobody() -> None:
    message = body("discord", announce(replace(EVENT, text="@everyone [x](http://y)")))
    (embed,) = message["embeds"]
    assert message["allowed_mentions"] == {"parse": []}
    assert embed["description"] == "\\@everyone \\[x\\]\\(http://y\\)"
    assert embed["url"] == "https://c.example/ui/#/experiments/7"
    assert embed["timestamp"] == "2027-01-15T08:00:00.500000+00:00"


def test_pagerduty_event_has_the_key_in_the_body() -> None:
    announcement = replace(announce(), url="https://events.pagerduty.com/v2/enqueue/canary-key")
    request = FORMATS["pagerduty"](announcement)
    assert request.url == "https://events.pagerduty.com/v2/enqueue"
    sent = json.loads(request.body)
    assert (sent["routing_key"], sent["event_action"]) == ("canary-key", "trigger")
    assert sent["payload"]["severity"] == "error"
    assert sent["dedup_key"] == "c1/experiment#7"


def test_cleared_alarm_resolves_the_incident() -> None:
    def event(state: str) -> Event:
        condition = EventCondition(state=state)
        return Event(EventType.ALARM, "alarm#lag#", 1, "alarm", condition=condition)

    raised, cleared = (body("pagerduty", announce(event(s))) for s in ("raised", "cleared"))
    assert (raised["event_action"], cleared["event_action"]) == ("trigger", "resolve")
    assert raised["dedup_key"] == cleared["dedup_key"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_announces_events_without_experiment_and_page(name: str) -> None:
    event = Event(EventType.TEST, "webhook#1", 1, "t" * 400, "x" * 10_000, data={"data": "test"})
    request = FORMATS[name](announce(event, ""))
    assert len(request.body) < 20_000
