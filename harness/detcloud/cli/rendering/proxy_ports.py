"""The ports of `environment.proxy_ports`, which `detcloud tunnel ID` opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.cli.rendering.table import Column, Item


def proxy_ports(config: Mapping[str, Any]) -> list[int]:
    """Return the distinct ports of `environment.proxy_ports` in the order of the configuration.

    Args:
        config: a configuration with every default, as the cluster returns it.
    """
    environment = config.get("environment") or {}
    entries = environment.get("proxy_ports") or ()
    return list(dict.fromkeys(int(entry["proxy_port"]) for entry in entries))


def has_proxy_ports(item: Item) -> bool:
    """Return whether the configuration of an experiment or command names ports."""
    return bool(proxy_ports(item.get("config") or {}))


def _ports_text(item: Item) -> str:
    """Return the ports of an experiment or command, and the command that opens the ports."""
    ports = ", ".join(map(str, proxy_ports(item["config"])))
    return f"{ports} (open with `detcloud tunnel {item['id']}`)"


PROXY_PORTS = Column("Ports", _ports_text)
"""The column of an experiment or command with ports, for descriptions as text."""
