"""The announcement of an event, from which each format builds a request. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.actors.event_routes import EventType
from control_plane.actors.events import EventRow
from control_plane.webhooks.sender import Request

JSON_TYPE = {"Content-Type": "application/json"}
_BAD = frozenset({"ERROR", "raised"})
_GOOD = frozenset({"COMPLETED", "cleared"})
_LEVELS: Mapping[str, str] = {"error": "bad", "warn": "warning"}


@dataclass(frozen=True, slots=True)
class Announcement:
    """An event and the webhook that announces the event."""

    event: EventRow
    url: str
    """The address of the receiver."""
    cluster: str
    """The id of the cluster."""
    page: str = ""
    """The URL of the cluster's API, which serves the web page. "" without a public address."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the webhook's format."""
    token: str = field(default="", repr=False)
    """The token with which the request logs in to the receiver, or ""."""

    @property
    def link(self) -> str:
        """The URL of the experiment's page, or "" for another event or an unknown page."""
        kind, _, number = self.event.subject.partition("#")
        is_shown = self.page and kind == "experiment"
        return f"{self.page.rstrip('/')}/ui/#/experiments/{number}" if is_shown else ""

    @property
    def title(self) -> str:
        """The title of the event with a capital letter."""
        return self.event.title[:1].upper() + self.event.title[1:]

    @property
    def mood(self) -> str:
        """The severity of the event: `bad`, `warning`, `good` or `neutral`."""
        state = self.event.condition.get("state", "")
        if state in _BAD:
            return "bad"
        if self.event.type in (EventType.LIMIT_AT_RISK, EventType.LOW_USE):
            return "warning"
        level = str(self.event.condition.get("level", ""))
        return _LEVELS.get(level, "good" if state in _GOOD else "neutral")


class NotAnnounced(Exception):
    """A format cannot announce an event, now or later. The message has the reason for users."""


Format = Callable[[Announcement], Request]
"""Builds the request that announces an event. Pure. May raise NotAnnounced."""


def json_request(url: str, value: object, headers: Mapping[str, str] | None = None) -> Request:
    """Return a POST of a JSON value. The encoding is compact and has only ASCII characters."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return Request(url, body, {**JSON_TYPE, **(headers or {})})


def fact_fields(announcement: Announcement) -> dict[str, Any]:
    """Return the facts of an event that chat messages show, by the names that users see."""
    event = announcement.event
    experiment = event.data.get("experiment", {})
    facts = {
        "Owner": experiment.get("user"),
        "Workspace": experiment.get("workspace"),
        "Project": experiment.get("project"),
        "Pool": experiment.get("resource_pool") or event.data.get("alarm", {}).get("pool"),
        "Cluster": announcement.cluster,
    }
    return {name: value for name, value in facts.items() if value}
