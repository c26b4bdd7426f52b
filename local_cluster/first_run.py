"""The lines that a starting server prints for the operator: address, sign-in, next commands."""

import sys
from collections.abc import Iterator

from control_plane.access.tokens import token_digest
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.services import Services
from control_plane.usecases.browser_sessions import create_sign_in_code
from local_cluster.embedded_cluster import EmbeddedCluster
from local_cluster.home import HomeFolder
from local_cluster.object_bucket import open_bucket
from local_cluster.service import OpenService

CODE_MS = 60 * 60 * 1000
RECORD = "announced"
"""The record of the data folder which says that the first start was announced."""


def announce_start(home: HomeFolder, embedded: EmbeddedCluster, service: OpenService) -> None:
    """Print the address and the pin of a started server, and at the first start how to sign in.

    Also print the bucket with the objects, and a note if other machines may not reach the bucket or
    the folder with the checkpoints. A sign-in
    code is printed only on a terminal, because services keep their output in logs. The first start
    on a terminal is recorded in the data folder. Raises TableError and OSError.
    """
    pin = None if service.certificate is None else service.certificate.pin
    print(f"the server is up at {service.url} (data in {home.folder})")
    if pin is not None:
        print(f"certificate: {pin}")
    services: Services = embedded.app.state.services
    for line in _place_lines(home, services):
        print(line)
    if not sys.stdout.isatty():
        print("`detcloud server code` on this machine prints a code to sign in")
    elif not home.read_record(RECORD):
        token = home.load_or_create_secret("token")
        print("\n".join(sign_in_lines(service.url, pin, _create_code(services, token), "an hour")))
        home.write_record(RECORD, {"url": service.url})
    sys.stdout.flush()


def _place_lines(home: HomeFolder, services: Services) -> Iterator[str]:
    """Yield the lines about the bucket with the objects, and about the default checkpoint store."""
    bucket = open_bucket(home)
    if bucket is not None:
        yield f"model code and logs are in {bucket.place}"
        if bucket.is_on_loopback:
            yield (
                "other machines cannot reach this address of the store: name another endpoint_url "
                "before you add machines"
            )
    if cluster_config(services).checkpoint_storage is not None:
        return
    if services.checkpoint_remedy:
        yield f"experiments have no place for checkpoints: {services.checkpoint_remedy}"
    else:
        yield (
            f"checkpoints are in {home.checkpoints}: give other machines this folder at the same "
            "path, or set checkpoint_storage in the cluster configuration"
        )


def sign_in_lines(url: str, pin: str | None, code: str, period: str) -> list[str]:
    """Return the lines about a sign-in with a code, and about the first agent.

    Args:
        url: the public address.
        pin: the pin of the certificate, or None.
        code: the sign-in code.
        period: the lifetime of the code in words.
    """
    pinned = "" if pin is None else f" --pin {pin}"
    return [
        f"sign in as the administrator with one of these lines (once, within {period}):",
        f"  detcloud login {url}{pinned} --code {code}",
        f"  {url}/ui/#/sign-in/{code}",
        "after the sign-in, this command adds a machine; without SSH, `detcloud agent join-line` "
        "prints a line to paste there:",
        "  detcloud agent add ssh://root@HOST",
    ]


def _create_code(services: Services, token: str) -> str:
    """Create a sign-in code for the holder of a token, valid for CODE_MS; return the code."""
    holder = services.tokens.find_principal(token_digest(token))
    assert holder is not None, "the token of the data folder belongs to the admin"
    return create_sign_in_code(services, holder, token, CODE_MS).code
