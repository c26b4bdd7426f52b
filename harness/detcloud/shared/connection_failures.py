"""The messages about requests without an answer: the target, the proxy and the remedy.

No message contains the login of a proxy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from detcloud.shared.bucket_errors import NO_ANSWER
from detcloud.shared.certificates import CA_VARIABLE, ORIGINAL_CA_VARIABLE, authority_file
from detcloud.shared.pins import WrongCertificate
from detcloud.shared.proxies import find_proxy
from detcloud.shared.proxy_addresses import EXPECTED, Proxy

LOGIN_REFUSED = 407
"""The HTTP status of a proxy that does not accept the login."""
CAUSES_MAX = 10
_TUNNEL_FAILED = "Tunnel connection failed: "
UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
"""OpenSSL's codes for self-signed certificates, and for certificates without a known issuer."""


class Failure(NamedTuple):
    """The failure of a request that got no answer."""

    text: str
    """The message for users."""
    is_final: bool
    """Whether a repeated request fails in the same way until somebody changes a setting."""


def describe_failure(url: str, error: Exception) -> Failure:
    """Return the failure of a request to `url`, an error of `http.client` or of a socket.

    The failure is final if the proxy refuses the login or the target, or if the certificate of the
    server is not accepted or not the pinned certificate. Raise ValueError if the environment names
    an invalid proxy.
    """
    proxy = find_proxy(url)
    way = _way(url, proxy)
    if isinstance(error, WrongCertificate):
        return Failure(f"{way}: {error}; {_pin_remedy(url, error)}", True)
    code = getattr(error, "verify_code", None)
    if code is not None:
        reason = f"its certificate is not accepted: {getattr(error, 'verify_message', error)}"
        remedy = f"; {_authority_remedy()}{_login_hint(url)}" if code in UNKNOWN_AUTHORITY else ""
        return Failure(f"{way}: {reason}{remedy}", True)
    reason = str(error) or type(error).__name__
    if proxy is None or not reason.startswith(_TUNNEL_FAILED):
        return Failure(f"{way}: {reason}", False)
    status = reason.removeprefix(_TUNNEL_FAILED)
    if status.startswith(str(LOGIN_REFUSED)):
        return Failure(login_refused_text(url), True)
    if status.startswith("403"):
        remedy = (
            "the proxy does not allow this host (403): allow it there, or list it in NO_PROXY if "
            "this machine reaches it directly"
        )
        return Failure(f"{way}: {remedy}", True)
    return Failure(f"{way}: the proxy answered {status}", False)


def login_refused_text(url: str) -> str:
    """Return the message about a request to `url` if the proxy does not accept the login."""
    proxy = find_proxy(url)
    return f"{_way(url, proxy)}: {_login_remedy(url, proxy)}"


def no_answer_remedy(url: str, error: object) -> str:
    """Return the remedy for a store at `url` that gave no answer, as a clause without a period.

    The remedy depends on the text of `error`, an error of a client of another library. It names the
    proxy, if one is used. Never raise.
    """
    text = " ".join(_texts(error))
    try:
        proxy = find_proxy(url)
    except ValueError as problem:
        return str(problem)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return _authority_remedy()
    if proxy is None:
        return NO_ANSWER
    if f"{LOGIN_REFUSED} " in text:
        return f"{_login_remedy(url, proxy)}, for the proxy {proxy}"
    return (
        f"the store does not answer through the proxy {proxy}: check the proxy, and whether it "
        "allows the store's host"
    )


def _texts(error: object) -> Iterator[str]:
    """Yield the texts of an error and of the causes. Botocore's errors name a cause in `kwargs`."""
    for _ in range(CAUSES_MAX):
        if error is None:
            return
        yield str(error)
        named = getattr(error, "kwargs", {}).get("error")
        error = named or getattr(error, "__cause__", None) or getattr(error, "__context__", None)


def _way(url: str, proxy: Proxy | None) -> str:
    place = "://".join(urlsplit(url)[:2])
    return f"{place} could not be reached" + (f" through the proxy {proxy}" if proxy else "")


def _login_remedy(url: str, proxy: Proxy | None) -> str:
    has_login = proxy is not None and bool(proxy.headers)
    fault = "refuses the user or password" if has_login else "requires a user and password"
    return f"the proxy {fault} (407); set {urlsplit(url).scheme.upper()}_PROXY to {EXPECTED}"


def _pin_remedy(url: str, error: WrongCertificate) -> str:
    """Return the remedy for a server with another certificate than the pinned certificate."""
    place = "://".join(urlsplit(url)[:2])
    return (
        "if the server's administrator replaced the certificate, compare the digest with "
        f"`detcloud server status` there, and run `detcloud login {place} --pin {error.found}`, or "
        "start the agent with this --pin; otherwise another machine may pose as the server"
    )


def _login_hint(url: str) -> str:
    """Return the remedy for a server whose certificate is self-signed, after another remedy."""
    place = "://".join(urlsplit(url)[:2])
    return (
        f"; if this is a `detcloud server`, `detcloud login {place} --pin sha256:...` trusts the "
        "certificate with the digest that the server printed"
    )


def _authority_remedy() -> str:
    named = authority_file()
    if named is not None:
        return (
            f"check that {named[1]}, which {named[0]} names, contains the authority that signs "
            "the certificate"
        )
    unused = os.environ.get(ORIGINAL_CA_VARIABLE)
    note = f"; {ORIGINAL_CA_VARIABLE}={unused} names no file" if unused else ""
    return (
        f"if your company has its own authority, set {CA_VARIABLE} to the file with its "
        f"certificate{note}"
    )
