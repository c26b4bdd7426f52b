"""Descriptions of the machine types that a cluster configuration names, from Compute Engine.

A deployment reads the descriptions and deploys them with the pools, so that launches need no
further calls. The functions here work on a configuration that is not checked yet, because the check
refuses machine types without a description. Malformed parts are ignored here, and refused by the
later check.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from control_plane.config.eras import Tree
from control_plane.gcp.machine_sections import DescribedTypes, MachineTypeConfig
from control_plane.gcp.machine_types import N1_DEFAULT, find_machine_type, parse_instance_type
from control_plane.gcp.zones import region_of
from infra.gcp.account_facts import TypeFacts
from infra.gcp.machine_catalog import MachineCatalog

NAMES_MAX: Final = 3
ZONES_MAX: Final = 6
_LIKENESS_MIN: Final = 0.5
_FIELD: Final = "machine_types"


class NamedType(NamedTuple):
    """A machine type that a pool names."""

    pool: str
    """The name of the pool."""
    region: str
    """The region of the pool's instances."""
    name: str
    """The name of the machine type."""
    needs_facts: bool
    """Whether only Compute Engine's description decides how many slots the type has."""


def find_named_types(tree: Tree, own_region: str) -> list[NamedType]:
    """Return the machine types of the pools on Google Cloud, in the pools' order.

    `own_region` is the region of pools that name neither a region nor a zone. Types can repeat.
    """
    found = []
    for pool, provider in _providers(tree):
        region = _text(provider, "region") or region_of(_text(provider, "zone")) or own_region
        for name, slots in _named_types(provider):
            is_known = find_machine_type(name) is not None or name in _map(provider, _FIELD)
            named = NamedType(pool, region, name, needs_facts=slots is None and not is_known)
            found.append(named)
    return found


def add_described_types(tree: Tree, described: DescribedTypes) -> Tree:
    """Return a copy of the configuration with descriptions added to pools on Google Cloud.

    A pool gets the descriptions of the machine types that the pool names. The pool's own
    descriptions take precedence, and malformed ones stay unchanged. Return `tree` itself without
    descriptions or without pools on Google Cloud.
    """
    if not described:
        return tree
    completed = dict(_providers_by_place(tree))
    if not completed:
        return tree
    pools = list(tree["resource_pools"])
    for place, provider in completed.items():
        named = {name for name, _ in _named_types(provider)}
        added = {
            name: machine_type_config.model_dump()
            for name, machine_type_config in described.items()
            if name in named
        }
        if added and isinstance(provider.get(_FIELD, {}), Mapping):
            types = {**added, **_map(provider, _FIELD)}
            pools[place] = {**pools[place], "provider": {**provider, _FIELD: types}}
    return {**tree, "resource_pools": pools}


def read_described_types(
    named: Collection[NamedType], catalog: MachineCatalog
) -> tuple[dict[str, MachineTypeConfig], list[str]]:
    """Read the named machine types; return (descriptions by name, problems).

    Types that no region offers have no description. The problems have a line for each type that
    needs a description but that the pool's region does not offer. Raise GoogleError if a call
    fails.
    """
    facts = catalog.read_types({named_type.name for named_type in named})
    described = {name: _describe(fact) for (_, name), fact in facts.items()}
    problems = []
    for pool, region, name, needs_facts in dict.fromkeys(named):
        if not needs_facts or (region, name) in facts:
            continue
        zones = {
            zone
            for (_, offered_name), type_facts in facts.items()
            if offered_name == name
            for zone in type_facts.zones
        }
        missing = describe_missing(name, region, zones, catalog.list_names(region))
        problems.append(f"pool {pool}: {name}: {'; '.join(missing)}")
    return described, problems


def describe_missing(
    name: str, region: str, zones: Collection[str], names: Collection[str]
) -> tuple[str, str]:
    """Return (text, remedy) about a machine type that a region does not offer.

    `zones` are the zones elsewhere that offer the type; the text lists up to ZONES_MAX. `names` are
    the types that the region offers; the remedy suggests up to NAMES_MAX similar names.
    """
    text = f"{region} does not offer this type"
    if zones:
        more = f" and {len(zones) - ZONES_MAX} more" if len(zones) > ZONES_MAX else ""
        text = f"{text}; {', '.join(sorted(zones)[:ZONES_MAX])}{more} do"
    near = difflib.get_close_matches(name, sorted(names), n=NAMES_MAX, cutoff=_LIKENESS_MIN)
    like = f", such as {', '.join(near)}" if near else ""
    return text, f"use another type{like}, or another region"


def _describe(facts: TypeFacts) -> MachineTypeConfig:
    """Convert Compute Engine's description of a machine type to the configuration's."""
    return MachineTypeConfig(
        vcpus=facts.vcpus,
        memory_gb=facts.memory_mb / 1024,
        gpus=facts.gpus,
        accelerator=facts.accelerator,
    )


def _providers(tree: Tree) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (pool name, `provider` of the pool's configuration) of each pool on Google Cloud."""
    for place, provider in _providers_by_place(tree):
        yield _text(tree["resource_pools"][place], "pool_name"), provider


def _providers_by_place(tree: Tree) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (index in `resource_pools`, the pool's `provider`) of each pool on Google Cloud."""
    pools = tree.get("resource_pools")
    for place, pool in enumerate(pools if isinstance(pools, list | tuple) else ()):
        provider = _map(pool, "provider") if isinstance(pool, Mapping) else {}
        if provider.get("type") == "gcp":
            yield place, provider


def _named_types(provider: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield each machine type of a pool with the configured number of slots.

    The number is None without configured slots; attached GPUs count as configured.

    Without offerings, yield the type of `instance_type`, or the default type. Malformed names are
    skipped.
    """
    offerings = provider.get("offerings")
    offered: list[tuple[object, object]] = [
        (offering.get("instance_type"), offering.get("slots"))
        for offering in (offerings if isinstance(offerings, list | tuple) else ())
        if isinstance(offering, Mapping)
    ]
    if not offerings:
        machine = _map(provider, "instance_type").get("machine_type", N1_DEFAULT)
        offered.append((machine, provider.get("instance_slots")))
    for name, slots in offered:
        instance = parse_instance_type(name) if isinstance(name, str) else None
        if instance is not None:
            yield instance.machine_type, slots if slots is not None else instance.number or None


def _map(holder: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the value of a field, or {} if the value is missing or no map."""
    found = holder.get(field)
    return found if isinstance(found, Mapping) else {}


def _text(holder: Mapping[str, Any], field: str) -> str:
    """Return the value of a field, or "" if the value is missing or no text."""
    found = holder.get(field)
    return found if isinstance(found, str) else ""
