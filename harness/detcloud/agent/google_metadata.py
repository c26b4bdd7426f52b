"""The metadata service of an allocation, from which Google's clients in a trial's code take the
tokens that the cluster issued for it.

Google's clients take the host of that service from `GCE_METADATA_HOST` and similar variables, and
put their paths behind it, so that the host here has a path with the allocation and its token. What
is answered is the little of Compute Engine's metadata that clients ask for: the project, and one
service account with its access tokens.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.storage_credentials import StorageToken

# What all of the paths here begin with, where no allocation's name does.
PREFIX = "/google-metadata/"
FLAVOR = {"Metadata-Flavor": "Google"}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ROOT = "computeMetadata/v1/"
_ACCOUNT = re.compile(r"instance/service-accounts/([^/]+)/(.*)")
_PROJECT = re.compile(r"[^@]+@([^.]+)\.iam\.gserviceaccount\.com")


class MetadataRequest(NamedTuple):
    """A request: whose it is, the token that it shows, and the path below the service's root."""

    holder: str
    token: str
    path: str


class MetadataAnswer(NamedTuple):
    """An answer of the service: a status, the type of its content and the content."""

    status: int
    kind: str
    content: str


def metadata_variables(address: str, holder: str, token: str) -> dict[str, str]:
    """The variables by which Google's clients find the service of a holder at `address`, the host
    and port of the agent's server.
    """
    host = f"{address}{PREFIX}{holder}/{token}"
    return dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"), host)


def parse_metadata_path(path: str) -> MetadataRequest | None:
    """Parse the path of a request; None for one that is not for this service."""
    if not path.startswith(PREFIX):
        return None
    name, _, rest = path.removeprefix(PREFIX).partition("?")[0].partition("/data/")
    token, _, asked = rest.partition("/")
    return MetadataRequest(f"{name}/data", token, asked)


def answer_metadata(
    asked: MetadataRequest, has_flavor: bool, fetch: Callable[[], StorageToken]
) -> MetadataAnswer:
    """Answer a request whose token is right. `has_flavor`: whether it has the header of FLAVOR,
    without which it may be one that somebody was tricked into. Raises what `fetch` raises.
    """
    if not asked.path:
        # How clients find out that there is such a service.
        return MetadataAnswer(200, "text/plain", "computeMetadata/\n")
    if not has_flavor:
        return MetadataAnswer(403, "text/plain", "the header Metadata-Flavor: Google is missing\n")
    path = asked.path.removeprefix(_ROOT)
    if path == "universe/universe-domain":
        return MetadataAnswer(200, "text/plain", "googleapis.com")
    if path == "project/project-id":
        found = _PROJECT.fullmatch(fetch().account)
        return MetadataAnswer(200, "text/plain", found[1]) if found else _unknown(path)
    if path == "instance/service-accounts/":
        return MetadataAnswer(200, "text/plain", f"default/\n{fetch().account}/\n")
    account = _ACCOUNT.fullmatch(path)
    return _answer_account(account[1], account[2], fetch()) if account else _unknown(path)


def _answer_account(name: str, path: str, token: StorageToken) -> MetadataAnswer:
    if name not in ("default", token.account):
        return _unknown(path)
    if path == "token":
        return MetadataAnswer(200, "application/json", json.dumps(token.to_answer()))
    if path == "":
        described = {"aliases": ["default"], "email": token.account, "scopes": [SCOPE]}
        return MetadataAnswer(200, "application/json", json.dumps(described))
    texts = {"email": token.account, "scopes": f"{SCOPE}\n", "aliases": "default\n"}
    return MetadataAnswer(200, "text/plain", texts[path]) if path in texts else _unknown(path)


def _unknown(path: str) -> MetadataAnswer:
    return MetadataAnswer(404, "text/plain", f"there is no {path} here\n")
