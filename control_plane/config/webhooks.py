"""The section `webhooks` of cluster configurations."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from control_plane.config.section import Secret, Section, refuse
from control_plane.field_types import Text

HOSTS_MAX: Final = 100
_HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

_DOMAIN: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")


def _check_host(host: str) -> str:
    """Return a host name, an address or a network. Refuse any other text."""
    try:
        ipaddress.ip_network(host, strict=True)
    except ValueError:
        if not _HOST.fullmatch(host):
            refuse("must be a host name, an address, or a network like 10.0.0.0/8")
    return host


Hosts = Annotated[
    tuple[Annotated[str, AfterValidator(_check_host)], ...],
    Field(strict=False, max_length=HOSTS_MAX),
]


def _check_domain(domain: str) -> str:
    """Return a domain of mail addresses. Refuse any other text."""
    if not _DOMAIN.fullmatch(domain):
        refuse("must be the part of an address after the @, like example.com")
    return domain


MailDomains = Annotated[
    tuple[Annotated[str, AfterValidator(_check_domain)], ...],
    Field(strict=False, max_length=HOSTS_MAX),
]


class Smtp(Section):
    """The mail server that sends the messages of webhooks with the format `email`."""

    host: Text
    """The host name of the mail server."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """The port of the mail server."""
    sender: Text
    """The address from which messages are sent."""
    username: Text | None = None
    """The name of the login. If absent, the cluster does not log in."""
    password: Secret | None = None
    """The password of the login."""
    starttls: bool = True
    """Whether the connection must be encrypted, by the command STARTTLS."""


class Webhooks(Section):
    """The rules for the receivers of webhooks."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "signing_key": "remove it: each webhook has its own secret",
            "base_url": "remove it: the cluster knows the address of its page",
        }
    )

    allowed_private_hosts: Hosts = ()
    """The hosts that webhooks may reach although the hosts have private addresses, or have no
    encryption: host names, addresses, and networks like `10.0.0.0/8`. Webhooks reach other hosts
    only with https at public addresses.
    """
    mail_domains: MailDomains = ()
    """The domains of addresses to which users may send with the format `email`, for example
    `example.com`. A subdomain counts as another domain. Admins may choose any address.
    """
    smtp: Smtp | None = None
    """The mail server for the format `email`; see SMTP. If absent, no webhook has this format."""
