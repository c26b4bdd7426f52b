"""The settings `machineProxy` and `caCertificates` of a stack, for the machines of the pools.

The settings become the fields `proxy` and `ca_certificates` of each pool in the stack's own cloud
that names none. A proxy is rarely reachable from another cloud, so pools of other clouds name
their own.
"""

import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from control_plane.config.eras import Tree
from control_plane.config.machine_network import Certificates, MachineProxy
from control_plane.config.section import REVEAL, findings_of

SECRETS: Final = frozenset({"machineProxy"})
"""Settings that messages must not quote."""
EXPECTED_PROXY: Final = (
    'a map like {"https_proxy": "http://USER:PASSWORD@HOST:PORT", "http_proxy": "...", '
    '"no_proxy": ".internal.example,10.0.0.0/8"}'
)
EXPECTED_CERTIFICATES: Final = "certificates of authorities in PEM form"


class _Holder(BaseModel):
    """A model whose only field has the rules of a pool's `ca_certificates`."""

    ca_certificates: Certificates


def parse_machine_proxy(text: str) -> dict[str, str]:
    """Return the fields of a pool's section `proxy` from a JSON map.

    Raise ValueError with a text of what was expected, which does not quote the value.
    """
    try:
        given = json.loads(text)
    except ValueError:
        raise ValueError(EXPECTED_PROXY) from None
    return check_machine_proxy(given)


def check_machine_proxy(given: object) -> dict[str, str]:
    """Return the fields of a pool's section `proxy`. Raise ValueError as `parse_machine_proxy`."""
    if not isinstance(given, Mapping):
        raise ValueError(EXPECTED_PROXY)
    try:
        proxy = MachineProxy.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{EXPECTED_PROXY}; {_faults(error)}") from None
    fields: dict[str, str] = proxy.model_dump(context=REVEAL, exclude_unset=True)
    return fields


def parse_certificates(text: str) -> str:
    """Return certificates in PEM form. Raise ValueError with a text of what was expected."""
    try:
        certificates = _Holder(ca_certificates=text).ca_certificates
    except ValidationError as error:
        raise ValueError(f"{EXPECTED_CERTIFICATES}; {_faults(error)}") from None
    try:
        if certificates:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except ssl.SSLError:
        raise ValueError(f"{EXPECTED_CERTIFICATES}; one of them is no certificate") from None
    return certificates


def add_machine_network(
    tree: Tree, cloud: str, proxy: Mapping[str, str], certificates: str
) -> Tree:
    """Return a copy of a cluster configuration with proxy and authorities in the pools of `cloud`.

    A pool's own fields, also empty ones, take precedence. Return `tree` itself without both
    settings. Malformed parts stay unchanged, and the later check refuses them.
    """
    added = {
        name: field
        for name, field in (("proxy", dict(proxy)), ("ca_certificates", certificates))
        if field
    }
    pools = tree.get("resource_pools")
    if not added or not isinstance(pools, list):
        return tree
    return {**tree, "resource_pools": [_completed_pool(pool, cloud, added) for pool in pools]}


def _completed_pool(pool: Any, cloud: str, added: Mapping[str, object]) -> Any:
    provider = pool.get("provider") if isinstance(pool, Mapping) else None
    if not isinstance(provider, Mapping) or provider.get("type") != cloud:
        return pool
    return {**pool, "provider": {**added, **provider}}


def _faults(error: ValidationError) -> str:
    """Return the places, faults and hints of a pydantic error, without values."""
    findings = findings_of(error)
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, one.loc)), one.message, one.hint)))
        for one in findings
    )
