"""Compute Engine's catalogue of machine types and accelerators, read with Google's own clients.

The clients take one to six seconds to import, which only a deployment and its check wait for.
`DETCLOUD_COMPUTE_ENDPOINT` names another address than Google's, which gets no credentials.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from control_plane.gcp.machine_types import custom_sibling, find_machine_type
from control_plane.gcp.zones import region_of
from infra.gcp.account_facts import AcceleratorFacts, TypeFacts
from infra.gcp.google_api import (
    SECONDS_MAX,
    GoogleError,
    describe_refusal,
    find_credentials,
    no_credentials,
)

PAGE_SIZE: Final = 500
_ZONES: Final = "zones/"


class MachineCatalog(Protocol):
    """The types that Compute Engine has. Every method raises GoogleError."""

    def read_types(self, names: Collection[str]) -> dict[tuple[str, str], TypeFacts]:
        """Return the machine types of these names that there are, by (region, name)."""

    def read_accelerators(self, names: Collection[str]) -> dict[str, AcceleratorFacts]:
        """Return the accelerators of these names that there are."""

    def list_names(self, region: str) -> frozenset[str]:
        """Return the names of all machine types of a region."""


class GoogleCatalog:
    """The catalogue as a project sees it, with the credentials or else those of the environment,
    which are looked for at the first call.
    """

    def __init__(self, project: str, credentials: Any = None, endpoint: str = "") -> None:
        self._project = project
        self._credentials = credentials
        self._endpoint = endpoint or os.environ.get("DETCLOUD_COMPUTE_ENDPOINT", "")

    def read_types(self, names: Collection[str]) -> dict[tuple[str, str], TypeFacts]:
        """Return the machine types of these names that there are, by (region, name).

        No list has custom types: they are where the ordinary types of their series are.
        """
        siblings = {name: sibling for name in names if (sibling := custom_sibling(name))}
        found: dict[tuple[str, str], TypeFacts] = {}
        listed = self._list_everywhere("MachineTypesClient", {*names, *siblings.values()})
        for zone, scoped in listed:
            for machine_type in scoped.machine_types:
                key = (region_of(zone), machine_type.name)
                before = found[key].zones if key in found else frozenset()
                found[key] = _type_facts(machine_type, before | {zone})
        regions = {region for region, _ in found}
        customs = {
            (region, name): _custom_facts(name, found[region, sibling])
            for region in regions
            for name, sibling in siblings.items()
            if (region, sibling) in found
        }
        return {
            key: type_facts for key, type_facts in {**found, **customs}.items() if key[1] in names
        }

    def read_accelerators(self, names: Collection[str]) -> dict[str, AcceleratorFacts]:
        """Return the accelerators of these names that there are."""
        found: dict[str, AcceleratorFacts] = {}
        for zone, scoped in self._list_everywhere("AcceleratorTypesClient", names):
            for accelerator_type in scoped.accelerator_types:
                before = found.get(accelerator_type.name, AcceleratorFacts(frozenset(), 0))
                number = max(before.number_max, accelerator_type.maximum_cards_per_instance)
                found[accelerator_type.name] = AcceleratorFacts(before.zones | {zone}, number)
        return found

    def list_names(self, region: str) -> frozenset[str]:
        """Return the names of all machine types of a region."""
        with _google_errors():
            place = self._client("RegionsClient").get(
                project=self._project, region=region, **_call_options()
            )
            client, names = self._client("MachineTypesClient"), set[str]()
            for zone in place.zones:
                request = {
                    "project": self._project,
                    "zone": zone.rpartition("/")[2],
                    "max_results": PAGE_SIZE,
                }
                names |= {item.name for item in client.list(request=request, **_call_options())}
        return frozenset(names)

    def _list_everywhere(self, kind: str, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield each zone, with what it has of these names."""
        wanted = " OR ".join(f"(name = {name})" for name in sorted(names))
        if not wanted:
            return
        request = {"project": self._project, "filter": wanted, "max_results": PAGE_SIZE}
        with _google_errors():
            for scope, scoped in self._client(kind).aggregated_list(
                request=request, **_call_options()
            ):
                if scope.startswith(_ZONES):
                    yield scope.removeprefix(_ZONES), scoped

    def _client(self, kind: str) -> Any:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import compute_v1

        options = ClientOptions(api_endpoint=self._endpoint) if self._endpoint else None
        if self._endpoint:
            self._credentials = self._credentials or AnonymousCredentials()
        else:
            self._credentials = find_credentials(self._project, self._credentials)
        return getattr(compute_v1, kind)(
            credentials=self._credentials, transport="rest", client_options=options
        )


def _call_options() -> Mapping[str, Any]:
    """Return how long a call may take; Google's client asks again where that may help."""
    from google.api_core.retry import Retry

    return {"timeout": SECONDS_MAX, "retry": Retry(timeout=SECONDS_MAX)}


@contextmanager
def _google_errors() -> Iterator[None]:
    """Raise GoogleError for what Google's clients raise."""
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.protobuf.json_format import ParseError
    from requests.exceptions import RequestException

    try:
        yield
    except GoogleAPICallError as error:
        content = getattr(error.response, "content", b"")
        raise GoogleError(error.code or 0, describe_refusal(content) or error.message) from None
    except (GoogleAPIError, RequestException) as error:
        raise GoogleError(0, f"no answer: {type(error).__name__}") from None
    except GoogleAuthError as error:
        raise no_credentials(error) from None
    except ParseError as error:
        raise GoogleError(0, f"an answer that is none of Compute Engine's: {error}") from None


def _type_facts(described: Any, zones: frozenset[str]) -> TypeFacts:
    """Return the facts of a machine type, as a message of Google's describes it."""
    facts = TypeFacts(
        described.guest_cpus, described.memory_mb, zones, architecture=described.architecture
    )
    for own in described.accelerators:
        facts = replace(
            facts, gpus=own.guest_accelerator_count, accelerator=own.guest_accelerator_type
        )
    return facts


def _custom_facts(name: str, sibling: TypeFacts) -> TypeFacts:
    """Return the facts of a custom type, whose zones and architecture are those of a sibling."""
    machine = find_machine_type(name)
    assert machine is not None
    return replace(sibling, vcpus=machine.vcpus, memory_mb=int(machine.memory_gb * 1024))
