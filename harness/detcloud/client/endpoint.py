"""Endpoint of a command or script: the cluster that it speaks to, and its token for it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from detcloud.client.home import HOME_VARIABLE, Home
from detcloud.shared.errors import DetcloudError

URL_VARIABLE = "DETCLOUD_URL"
TOKEN_VARIABLE = "DETCLOUD_TOKEN"


@dataclass(frozen=True)
class Endpoint:
    """The address of a cluster and the token for it; `home` when it is the embedded one."""

    url: str
    token: str
    home: Home | None = None


def find_endpoint(url: str | None = None) -> Endpoint | None:
    """Find the cluster to use; None when none is configured and the embedded one is not running.

    In this order: `url`, `DETCLOUD_URL`, the embedded cluster of an explicit `DETCLOUD_HOME`,
    `~/.detcloud/credentials.json`, the embedded cluster of `~/.detcloud`. A token goes only to the
    address it was given for: `DETCLOUD_TOKEN` to one that was named explicitly, a stored one to
    the address stored with it.

    Raises:
        DetcloudError: an address without a token, or an unreadable credentials file.
    """
    requested = _requested_url(url)
    home = Home.from_environment()
    if requested is not None:
        return Endpoint(requested, _token_for(requested, home))
    stored = None if os.environ.get(HOME_VARIABLE) else _stored_endpoint()
    return stored or _embedded_endpoint(home)


def configured_url(url: str | None = None) -> str | None:
    """Return the address that `find_endpoint` would use, whether there is a token for it or not.

    Raises:
        DetcloudError: as `find_endpoint` does.
    """
    requested = _requested_url(url)
    if requested is not None:
        return requested
    endpoint = find_endpoint()
    return endpoint.url if endpoint else None


def is_configured(url: str | None = None) -> bool:
    """Whether the user named a cluster, so that no embedded one may be started instead."""
    if _requested_url(url) is not None:
        return True
    return not os.environ.get(HOME_VARIABLE) and _stored_endpoint() is not None


def store_credentials(url: str, token: str) -> Path:
    """Store a token for an address, so that later commands use both; return the file.

    Raises:
        DetcloudError: the file cannot be written.
    """
    path = _credentials_path()
    text = json.dumps({"url": url, "token": token})
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise DetcloudError(f"{path} could not be written: {error.strerror}") from None
    return path


def remove_credentials() -> bool:
    """Remove the stored token; False when there was none."""
    try:
        _credentials_path().unlink()
    except FileNotFoundError:
        return False
    return True


def _requested_url(url: str | None) -> str | None:
    """Return the address that was named, if any.

    An empty `url` is a mistake, such as a shell's variable without a value; the empty
    DETCLOUD_URL is one that is not set.
    """
    if url is None and not (url := os.environ.get(URL_VARIABLE)):
        return None
    if not url.startswith(("http://", "https://")):
        raise DetcloudError(f"{url!r} is not an address; expected http://HOST:PORT or https://HOST")
    return url


def _credentials_path() -> Path:
    return Path.home() / ".detcloud" / "credentials.json"


def _token_for(url: str, home: Home) -> str:
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        return token
    for known in (_stored_endpoint(), _embedded_endpoint(home)):
        if known is not None and known.url.rstrip("/") == url.rstrip("/"):
            return known.token
    raise DetcloudError(f"there is no token for {url}; set {TOKEN_VARIABLE}")


def _stored_endpoint() -> Endpoint | None:
    path = _credentials_path()
    try:
        fields = json.loads(path.read_text())
        return Endpoint(str(fields["url"]), str(fields["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise DetcloudError(
            f'{path} could not be read; it must hold {{"url": ..., "token": ...}}'
        ) from None


def _embedded_endpoint(home: Home) -> Endpoint | None:
    server = home.running_server()
    return Endpoint(server.url, home.token(), home) if server else None
