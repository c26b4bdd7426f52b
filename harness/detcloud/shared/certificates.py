"""The authorities whose certificates connections trust in addition to the system's authorities.

Companies sign the certificates of internal servers, and of proxies that inspect connections, by an
authority of their own. CA_VARIABLE names the file with its certificate. Every command imports this
module, so `ssl` is imported in functions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.shared.errors import InvalidValue
from detcloud.shared.proxy_addresses import complete_proxies

if TYPE_CHECKING:
    from ssl import SSLContext

CA_VARIABLE = "DETCLOUD_CA_FILE"
ORIGINAL_CA_VARIABLE = "DET_MASTER_CERT_FILE"
"""Determined's variable, which is used if CA_VARIABLE is missing or empty."""
BUNDLE_VARIABLES = (
    "AWS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
"""The variables by which other programs find a file with all trusted authorities."""
BUNDLE_FILE = "trusted-authorities.pem"
# The files with the authorities of Debian, Red Hat, SUSE and Alpine, in this order.
_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def authority_file(environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the variable that names the file of authorities, and the file's path.

    Return None if neither CA_VARIABLE nor ORIGINAL_CA_VARIABLE names a file. The file is not read.
    A missing file of ORIGINAL_CA_VARIABLE counts as none: the variable may be left from Determined,
    or be `noverify`.
    """
    if path := environment.get(CA_VARIABLE, "").strip():
        return CA_VARIABLE, path
    path = environment.get(ORIGINAL_CA_VARIABLE, "").strip()
    return (ORIGINAL_CA_VARIABLE, path) if path and Path(path).is_file() else None


def tls_context(environment: Mapping[str, str] = os.environ) -> SSLContext | None:
    """Return a context that trusts the authorities of the system and of the file.

    Return None if no variable names a file: the caller then uses Python's default. The context is
    cached until the file changes. Raise InvalidValue, which names the variable and the file, if the
    file cannot be read or contains no certificate.
    """
    named = authority_file(environment)
    if named is None:
        return None
    variable, path = named
    system = (environment.get("SSL_CERT_FILE"), environment.get("SSL_CERT_DIR"))
    try:
        changed_ns = Path(path).stat().st_mtime_ns
        return _open_context(path, changed_ns, system)
    except (OSError, ValueError) as error:
        # An SSLError, which is an OSError, names only a place in OpenSSL's code.
        cause = getattr(error, "strerror", None) or error
        is_read = hasattr(error, "library")
        reason = "contains no valid certificate" if is_read else f"cannot be read: {cause}"
        raise InvalidValue(
            f"{variable} names {path}, which {reason}; name a file with certificates in PEM form, "
            "or unset the variable"
        ) from None


def complete_environment(
    environment: MutableMapping[str, str], folder: Path | None = None
) -> Path | None:
    """Set variables by which clients of other libraries use the same proxies and authorities.

    If a proxy is set, NO_PROXY also lists this machine and the clouds' metadata services. If a file
    of authorities is set, write a file with these and the system's authorities, and set those of
    BUNDLE_VARIABLES that are missing. Return the path of this file, or None without authorities.
    `folder` contains the file; by default, a cache of the user. Raise InvalidValue as `tls_context`
    does, or if no file can be written.
    """
    environment.update(complete_proxies(environment))
    named = authority_file(environment)
    if named is None:
        return None
    if folder is None and all(environment.get(variable) for variable in BUNDLE_VARIABLES):
        return Path(environment["SSL_CERT_FILE"])
    tls_context(environment)
    try:
        bundle = _write_bundle(folder or _cache_folder(environment), Path(named[1]), environment)
    except OSError as error:
        raise InvalidValue(
            f"the authorities of {named[0]} cannot be written for other clients: {error}"
        ) from error
    for variable in BUNDLE_VARIABLES:
        if not environment.get(variable):
            environment[variable] = str(bundle)
    return bundle


@lru_cache(maxsize=8)
def _open_context(path: str, changed_ns: int, system: tuple[str | None, str | None]) -> SSLContext:
    """Return a context for HTTP/1.1. The arguments after `path` are keys of the cache only."""
    from ssl import create_default_context

    context = create_default_context()
    context.load_verify_locations(path)
    # Like http.client's own context.
    context.set_alpn_protocols(["http/1.1"])
    return context


def _write_bundle(folder: Path, own: Path, environment: Mapping[str, str]) -> Path:
    """Write the authorities of the system and of the file `own` to BUNDLE_FILE in `folder`.

    Several processes may write the file at the same time, and trials of other users read it.
    """
    import tempfile

    parts = [_system_authorities(environment), own.read_bytes()]
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=folder)
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"\n".join(parts))
        new.chmod(0o444)
        return new.replace(folder / BUNDLE_FILE)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _system_authorities(environment: Mapping[str, str]) -> bytes:
    """Return the authorities that this process trusts by default, in PEM form.

    SSL_CERT_FILE precedes the system's file. Without a file, the system's store is read.
    """
    from ssl import DER_cert_to_PEM_cert, create_default_context, get_default_verify_paths

    named = environment.get("SSL_CERT_FILE", "")
    own = named if Path(named).name != BUNDLE_FILE else ""
    for path in (own, get_default_verify_paths().openssl_cafile, *_SYSTEM_FILES):
        if path and Path(path).is_file():
            return Path(path).read_bytes()
    stored = create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(DER_cert_to_PEM_cert, stored)).encode()


def _cache_folder(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "detcloud"
