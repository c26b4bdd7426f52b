"""Compute Engine's catalogue of machine types and accelerators, read with Google's own clients.

Importing the clients takes one to six seconds, so functions import them only when called. The
variable `DETCLOUD_COMPUTE_ENDPOINT` replaces Google's address; calls there carry no credentials.
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
    """A catalogue of Compute Engine's types. Every method raises GoogleError if a call fails."""

    def read_types(self, names: Collection[str]) -> dict[tuple[str, str], TypeFacts]:
        """Return the named machine types in all regions, by (region, name).

        Types that a region does not offer are left out.
        """

    def read_accelerators(self, names: Collection[str]) -> dict[str, AcceleratorFacts]:
        """Return the named accelerators by name, without accelerators that no zone offers."""

    def list_names(self, region: str) -> frozenset[str]:
        """Return the names of all machine types that a region offers."""


class GoogleCatalog:
    """A MachineCatalog that reads a project's view of Compute Engine.

    Without `credentials`, the environment's credentials are searched at the first call. A given
    `endpoint` replaces Google's address, and is called without credentials by default. Every method
    raises GoogleError if a call fails, takes longer than `seconds_max` or credentials are missing.
    """

    def __init__(
        self,
        project: str,
        credentials: Any = None,
        endpoint: str = "",
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._project = project
        self._credentials = credentials
        self._seconds_max = seconds_max
        self._endpoint = endpoint or os.environ.get("DETCLOUD_COMPUTE_ENDPOINT", "")

    def read_types(self, names: Collection[str]) -> dict[tuple[str, str], TypeFacts]:
        """Return the named machine types in all regions, by (region, name).

        Compute Engine lists no custom types. A custom type is assumed to exist in each region with
        an ordinary type of the same series. Types that a region does not offer are left out.
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
        """Return the named accelerators by name, without accelerators that no zone offers."""
        found: dict[str, AcceleratorFacts] = {}
        for zone, scoped in self._list_everywhere("AcceleratorTypesClient", names):
            for accelerator_type in scoped.accelerator_types:
                before = found.get(accelerator_type.name, AcceleratorFacts(frozenset(), 0))
                number = max(before.number_max, accelerator_type.maximum_cards_per_instance)
                found[accelerator_type.name] = AcceleratorFacts(before.zones | {zone}, number)
        return found

    def list_names(self, region: str) -> frozenset[str]:
        """Return the names of all machine types in the region's zones; call Google per zone.

        Raise GoogleError, also for an unknown region.
        """
        with _google_errors():
            place = self._client("RegionsClient").get(
                project=self._project, region=region, **self._call_options()
            )
            client, names = self._client("MachineTypesClient"), set[str]()
            for zone in place.zones:
                request = {
                    "project": self._project,
                    "zone": zone.rpartition("/")[2],
                    "max_results": PAGE_SIZE,
                }
                listed = client.list(request=request, **self._call_options())
                names |= {machine_type.name for machine_type in listed}
        return frozenset(names)

    def _list_everywhere(self, kind: str, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield each zone with a list of the named types; yield nothing without names.

        `kind` is the name of Google's client class.
        """
        wanted = " OR ".join(f"(name = {name})" for name in sorted(names))
        if not wanted:
            return
        request = {"project": self._project, "filter": wanted, "max_results": PAGE_SIZE}
        with _google_errors():
            for scope, scoped in self._client(kind).aggregated_list(
                request=request, **self._call_options()
            ):
                if scope.startswith(_ZONES):
                    yield scope.removeprefix(_ZONES), scoped

    def _client(self, kind: str) -> Any:
        """Create a client of Google's library by the name of the class.

        Raise GoogleError if the credentials are missing or invalid.
        """
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

    def _call_options(self) -> Mapping[str, Any]:
        """Return the arguments that limit the time of a call, including retries."""
        from google.api_core.retry import Retry

        return {"timeout": self._seconds_max, "retry": Retry(timeout=self._seconds_max)}


@contextmanager
def _google_errors() -> Iterator[None]:
    """Convert errors of Google's clients in the block, and malformed answers, to GoogleError.

    The status is the HTTP status of a refusal, UNAUTHORIZED without credentials, and otherwise 0.
    """
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
        raise GoogleError(0, f"the answer is not from Compute Engine: {error}") from None


def _type_facts(described: Any, zones: frozenset[str]) -> TypeFacts:
    """Return the facts of a machine type from Google's description."""
    facts = TypeFacts(
        described.guest_cpus, described.memory_mb, zones, architecture=described.architecture
    )
    for own in described.accelerators:
        facts = replace(
            facts, gpus=own.guest_accelerator_count, accelerator=own.guest_accelerator_type
        )
    return facts


def _custom_facts(name: str, sibling: TypeFacts) -> TypeFacts:
    """Return the facts of a custom type: size from the name, other facts from the sibling.

    The sibling is an ordinary type of the same series.
    """
    machine = find_machine_type(name)
    assert machine is not None
    return replace(sibling, vcpus=machine.vcpus, memory_mb=int(machine.memory_gb * 1024))
