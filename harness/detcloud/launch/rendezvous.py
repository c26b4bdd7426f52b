"""The rendezvous of torch's launchers on the nodes of a trial, as options of torch.distributed.run.

Plainly each node has the rank that the assignment gives it. Torch's `static` rendezvous does that,
but no second one: after a restart the workers would find the addresses of those before in its
store, and nodes that may be fewer it waits for. So a launcher that may restart its workers, or
begin with fewer nodes, uses the one that torch calls `c10d`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from detcloud.launch.gang import Gang

STATIC = "static"
ELASTIC = "c10d"


def rendezvous_arguments(gang: Gang, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before the user's own, which replace them, and those after them."""
    if "--standalone" in overrides:
        return [], []
    backend = _choose_backend(overrides)
    if backend == STATIC:
        address = ["--master_addr", gang.chief, "--master_port", str(gang.port)]
        return ["--node_rank", str(gang.node_rank), *(address if gang.port else [])], []
    # Torch would look for the address of the machine's name, which may be any.
    before = ["--rdzv_backend", ELASTIC, "--local_addr", gang.own_host]
    if gang.port is not None:
        before += ["--rdzv_endpoint", f"{_in_brackets(gang.chief)}:{gang.port}"]
        before += ["--rdzv_id", _rendezvous_id()]
    return before, _host_option(gang, overrides)


def rendezvous_variables(overrides: Sequence[str]) -> dict[str, str]:
    """The variables of the launcher's process, over which those that are set already stay."""
    if "--standalone" in overrides or _choose_backend(overrides) == STATIC:
        return {}
    # Else the workers of all attempts would share one store.
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    return {name: os.environ.get(name, "1")}


def _choose_backend(overrides: Sequence[str]) -> str:
    chosen = _last_value(overrides, "rdzv_backend")
    if chosen is not None:
        return chosen
    restarts = _last_value(overrides, "max_restarts") or "0"
    nodes = _last_value(overrides, "nnodes") or ""
    return ELASTIC if restarts != "0" or ":" in nodes else STATIC


def _host_option(gang: Gang, overrides: Sequence[str]) -> list[str]:
    """The option that has the first node hold the store, unless the user says where it is."""
    settings = _last_value(overrides, "rdzv_conf") or ""
    if gang.port is None or _last_value(overrides, "rdzv_endpoint") or "is_host" in settings:
        return []
    is_host = f"is_host={str(gang.node_rank == 0).lower()}"
    return ["--rdzv_conf", ",".join(filter(None, (settings, is_host)))]


def _last_value(words: Sequence[str], name: str) -> str | None:
    """The value of an option of torch's in its last place, None where it is not given."""
    value = None
    for number, word in enumerate(words):
        option, _, given = word.partition("=")
        if option.startswith("--") and option[2:].replace("-", "_") == name:
            following = words[number + 1] if number + 1 < len(words) else ""
            value = given if "=" in word else following
    return value


def _rendezvous_id() -> str:
    """The name of the allocation, which the trial's folder has."""
    folder = os.environ.get("DETCLOUD_TRIAL_DIR", "").rstrip("/")
    return folder.rpartition("/")[2] or "detcloud"


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
