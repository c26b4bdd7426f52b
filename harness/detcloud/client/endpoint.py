"""The endpoint of a command or script: a cluster's address, and the token for the address."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from detcloud.client.home import Home
from detcloud.shared.address_list import split_addresses
from detcloud.shared.connections import origin
from detcloud.shared.errors import DetcloudError, InvalidValue
from detcloud.shared.pins import PIN_VARIABLE, find_pin, parse_pin, pin_server

URL_VARIABLE = "DETCLOUD_URL"
TOKEN_VARIABLE = "DETCLOUD_TOKEN"


@dataclass(frozen=True)
class Endpoint:
    """The address of a cluster and the token for the address."""

    url: str
    token: str
    home: Home | None = None
    """The data folder if this is the embedded cluster, otherwise None."""
    pin: str | None = None
    """The pin of the server's certificate, or None for a certificate of a known authority."""


def find_endpoint(url: str | None = None) -> Endpoint | None:
    """Return the cluster to use. None if no cluster is configured and the embedded one is not
    running.

    The first that exists is used: `url`, `DETCLOUD_URL`, the cluster of `credentials.json` in the
    data folder, the embedded cluster of the data folder. `DETCLOUD_HOME` names the data folder, by
    default `~/.detcloud`.

    A token is only used with the address that it belongs to. `DETCLOUD_TOKEN` belongs to `url` or
    `DETCLOUD_URL`. Without it, the stored token or the embedded cluster's token is used if its
    address is equal.

    Raises:
        DetcloudError: no token for the address is known, the address is not http or https, or the
            credentials file cannot be read.
    """
    requested = _requested_url(url)
    home = Home.from_environment()
    if requested is not None:
        return Endpoint(requested, _token_for(requested, home))
    return _read_endpoint(_credentials_path()) or _embedded_endpoint(home)


def configured_url(url: str | None = None) -> str | None:
    """Return the address that `find_endpoint` would use, even if no token for the address is known.

    Return None if no cluster is configured and the embedded cluster is not running.

    Raises:
        DetcloudError: the address is not http or https, or a stored file cannot be read.
    """
    requested = _requested_url(url)
    if requested is not None:
        return requested
    endpoint = find_endpoint()
    return endpoint.url if endpoint else None


def is_configured(url: str | None = None) -> bool:
    """Return whether the user chose a cluster, so that no embedded cluster may be started instead.

    That is: `url` or `DETCLOUD_URL` is set, or the data folder has credentials.

    Raises:
        DetcloudError: the address is not http or https, or the credentials file cannot be read.
    """
    if _requested_url(url) is not None:
        return True
    return _read_endpoint(_credentials_path()) is not None


def pin_known_server(url: str) -> None:
    """Let connections to the server at `url` accept only a pinned certificate, if a pin is known.

    A pin that the process has already stays. Otherwise the pin of DETCLOUD_PIN is used, then the
    stored pin if `url` has the scheme, host and port of a stored address. Do nothing without a pin,
    and for http. `url` may have several addresses, separated by commas.

    Raises:
        DetcloudError: DETCLOUD_PIN is no pin, or the credentials file cannot be read.
    """
    for address in split_addresses(url):
        if address.startswith("https://") and find_pin(address) is None:
            _pin_unpinned_server(address)


def _pin_unpinned_server(url: str) -> None:
    if pin := os.environ.get(PIN_VARIABLE, "").strip():
        try:
            pin_server(url, pin)
        except InvalidValue as error:
            raise DetcloudError(f"{PIN_VARIABLE}: {error}") from None
        return
    for stored in _stored_endpoints():
        if stored.pin and origin(url) in map(origin, split_addresses(stored.url)):
            pin_server(url, stored.pin)
            return


def store_credentials(url: str, token: str, pin: str | None = None) -> Path:
    """Write an address and a token to the credentials file, and return the path of the file.

    The file is in the data folder. An existing file is replaced. Later commands use this cluster by
    default.

    Args:
        url: the address.
        token: the token for the address.
        pin: the pin of the server's certificate; None for a certificate of a known authority.

    Raises:
        DetcloudError: the file cannot be written.
    """
    path = _credentials_path()
    text = json.dumps({"url": url, "token": token, **({"pin": pin} if pin else {})})
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
    """Delete the credentials file. Return False if the file did not exist.

    Raises OSError if the file cannot be deleted.
    """
    try:
        _credentials_path().unlink()
    except FileNotFoundError:
        return False
    return True


def _requested_url(url: str | None) -> str | None:
    """Return `url`, or else DETCLOUD_URL. Return None if neither is set.

    An empty DETCLOUD_URL counts as not set. An empty `url` is a mistake, such as a shell variable
    without a value. Raises DetcloudError if the address is not http or https.
    """
    if url is None and not (url := os.environ.get(URL_VARIABLE)):
        return None
    if not url.startswith(("http://", "https://")):
        raise DetcloudError(f"{url!r} is not an address; expected http://HOST:PORT or https://HOST")
    return url


def _credentials_path(home: Home | None = None) -> Path:
    return (home or Home.from_environment()).folder / "credentials.json"


def _token_for(url: str, home: Home) -> str:
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        return token
    for known in (*_stored_endpoints(), _embedded_endpoint(home)):
        if known is not None and known.url.rstrip("/") == url.rstrip("/"):
            return known.token
    raise DetcloudError(
        f"no token for {url} is known; store one with `detcloud login {url}`, or set "
        f"{TOKEN_VARIABLE}"
    )


def _stored_endpoints() -> list[Endpoint]:
    """Return the clusters of all credentials files: of the data folder, and of `~/.detcloud`."""
    paths = dict.fromkeys((_credentials_path(), _credentials_path(Home.of_user())))
    found = [_read_endpoint(path) for path in paths]
    return [endpoint for endpoint in found if endpoint is not None]


def _read_endpoint(path: Path) -> Endpoint | None:
    """Return the cluster of a credentials file. None if the file does not exist."""
    try:
        fields = json.loads(path.read_text("utf-8"))
        pin = fields.get("pin")
        return Endpoint(
            str(fields["url"]), str(fields["token"]), pin=None if pin is None else parse_pin(pin)
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DetcloudError(
            f'{path} could not be read; it must hold {{"url": ..., "token": ...}}'
        ) from None


def _embedded_endpoint(home: Home) -> Endpoint | None:
    server = home.running_server()
    return Endpoint(server.url, home.token(), home) if server else None
