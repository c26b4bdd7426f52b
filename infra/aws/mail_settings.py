"""Settings and permissions for mails of webhooks through Amazon SES.

Each parser of PARSERS returns a value, or raises ValueError with a text of what was expected.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from infra.aws.names import Names
from infra.aws.policy_statements import Statement, make_statement

VARIABLE: Final = "DETCLOUD_MAIL_SENDER"
"""The environment variable of functions with the address of the sender."""
_DOMAIN: Final = r"(?=[^@]{4,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}"
_ADDRESS: Final = re.compile(rf"[A-Za-z0-9._+-]{{1,64}}@{_DOMAIN}")
_IDENTITY: Final = re.compile(rf"(?:[A-Za-z0-9._+-]{{1,64}}@)?{_DOMAIN}")


def find_inconsistencies(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction between individually valid settings; [] without any.

    `values` maps field names of Settings to parsed values.
    """
    sender, identity = values.get("mail_sender", ""), values.get("mail_identity", "")
    if not identity:
        return []
    if not sender:
        return ["detcloud:mailSender is missing: detcloud:mailIdentity is the sender's identity"]
    domain = sender.rpartition("@")[2]
    # SES accepts the address, the domain of the address, and the domains above.
    if identity != sender and not f".{domain}".endswith(f".{identity}"):
        return [f"detcloud:mailIdentity is {identity}: expected {sender} or a domain of it"]
    return []


def mail_statements(names: Names, sender: str, identity: str) -> list[Statement]:
    """Return the statement for sending mails from an address of an identity; [] without a sender.

    Without `identity`, the domain of the sender is the identity.
    """
    if not sender:
        return []
    arn = names.mail_identity_arn(identity or sender.rpartition("@")[2])
    own = {"StringEquals": {"ses:FromAddress": sender}}
    return [make_statement("SendMail", ["ses:SendEmail"], [arn], own)]


def mail_variables(sender: str) -> dict[str, str]:
    """Return the environment variable with the sender's address; {} without a sender."""
    return {VARIABLE: sender} if sender else {}


def _parse_sender(text: str) -> str:
    """Return an address unchanged. Raise ValueError for other texts."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError("an e-mail address with a domain in lower case")
    return text


def _parse_identity(text: str) -> str:
    """Return an address or a domain unchanged. Raise ValueError for other texts."""
    if not _IDENTITY.fullmatch(text):
        raise ValueError("a verified identity of SES: a domain in lower case, or an address")
    return text


PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "mailSender": _parse_sender,
    "mailIdentity": _parse_identity,
}
