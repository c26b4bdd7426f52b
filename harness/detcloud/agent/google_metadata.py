"""The metadata service of an allocation, an imitation of Compute Engine's.

Google's clients in a trial's code read the tokens from the service that the cluster issued for the
code. The clients read the service's host from `GCE_METADATA_HOST` and similar variables, and append
their paths. The host in the variables therefore contains a path with the allocation and its token.
The service only answers requests that clients make: for the project, and for a service account with
its access tokens.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.issued_keys import StorageToken

# The start of all paths of this service. No allocation's name starts in this way.
PREFIX = "/google-metadata/"
FLAVOR = {"Metadata-Flavor": "Google"}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ROOT = "computeMetadata/v1/"
_ACCOUNT = re.compile(r"instance/service-accounts/([^/]+)/(.*)")
_PROJECT = re.compile(r"[^@]+@([^.]+)\.iam\.gserviceaccount\.com")


class MetadataRequest(NamedTuple):
    """A parsed request to the metadata service. The token is not verified yet."""

    holder: str
    """The holder that the request's path names, in the form of `data_holder`."""
    token: str
    """The token in the request's path."""
    path: str
    """The path below the service's root. "" for the root."""


class MetadataAnswer(NamedTuple):
    """An answer of the metadata service."""

    status: int
    """The HTTP status."""
    kind: str
    """The content type."""
    content: str


def metadata_variables(address: str, holder: str, token: str) -> dict[str, str]:
    """Return the environment variables that direct Google's clients to a holder's service.

    `address` is HOST:PORT of the agent's server. `token` is the holder's token, which becomes part
    of the variables' values.
    """
    host = f"{address}{PREFIX}{holder}/{token}"
    return dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"), host)


def parse_metadata_path(path: str) -> MetadataRequest | None:
    """Parse the path of a request, ignoring the query.

    Return None if the path does not start with PREFIX. A path without "/data/" gives an empty
    `token` and `path`. `holder` always ends in "/data". Nothing is verified.
    """
    if not path.startswith(PREFIX):
        return None
    name, _, rest = path.removeprefix(PREFIX).partition("?")[0].partition("/data/")
    token, _, asked = rest.partition("/")
    return MetadataRequest(f"{name}/data", token, asked)


def answer_metadata(
    asked: MetadataRequest, has_flavor: bool, fetch: Callable[[], StorageToken]
) -> MetadataAnswer:
    """Answer a request with a verified token.

    Return status 404 for an unknown path or account. Return status 403 without the flavor header,
    except for the root.

    Args:
        asked: the request.
        has_flavor: whether the request has the header of FLAVOR. Forged requests lack the header.
        fetch: returns the holder's token. Its exceptions are passed on.
    """
    if not asked.path:
        # Clients read the root, without the header, to detect the service.
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
