"""The formats of webhooks by name."""

from collections.abc import Mapping
from types import MappingProxyType

from control_plane.webhooks.formats import discord, email, github, json, pagerduty, slack, teams
from control_plane.webhooks.formats.message import Format

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "json": json.build_request,
        "slack": slack.build_request,
        "teams": teams.build_request,
        "discord": discord.build_request,
        "pagerduty": pagerduty.build_request,
        "email": email.build_request,
        "github": github.build_request,
    }
)
