"""The rendezvous of torch's launchers on a trial's nodes, as options of torch.distributed.run.

By default each node has the rank of the trial's assignment, with torch's `static` rendezvous. After
a restart, that rendezvous finds the addresses of the earlier workers in its store, and it waits for
all nodes. A launcher that may restart workers or begin with fewer nodes therefore uses torch's
`c10d` rendezvous.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from detcloud.launch.gang import Gang

STATIC = "static"
ELASTIC = "c10d"


def rendezvous_arguments(gang: Gang, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that precede the user's `overrides`, and the options that follow.

    `overrides` are the user's options of torch's launcher, which replace the preceding options:
    rank and address of the node, or the backend and its endpoint. A `--rdzv_conf` that names the
    host of torch's store follows, because it repeats the user's `--rdzv_conf`. For the `static`
    rendezvous, no option follows. Both lists are empty with `--standalone`.
    """
    if "--standalone" in overrides:
        return [], []
    backend = _choose_backend(overrides)
    if backend == STATIC:
        address = ["--master_addr", gang.chief, "--master_port", str(gang.port)]
        return ["--node_rank", str(gang.node_rank), *(address if gang.port else [])], []
    # Torch would otherwise resolve the machine's name, which may have any address.
    before = ["--rdzv_backend", ELASTIC, "--local_addr", gang.own_host]
    if gang.port is not None:
        before += ["--rdzv_endpoint", f"{_in_brackets(gang.chief)}:{gang.port}"]
        before += ["--rdzv_id", _rendezvous_id()]
    return before, _host_option(gang, overrides)


def rendezvous_variables(overrides: Sequence[str]) -> dict[str, str]:
    """Return the environment variable that makes torch create a separate store for each attempt.

    The name is TORCH_DISABLE_SHARE_RDZV_TCP_STORE; a present value stays, and the default is "1".
    Return an empty dict for the `static` rendezvous and with `--standalone`. The rendezvous is
    `static` unless `overrides` choose another backend, restarts or a range of nodes. `overrides`
    are the user's options of torch's launcher.
    """
    if "--standalone" in overrides or _choose_backend(overrides) == STATIC:
        return {}
    # Otherwise the workers of all attempts would share a store.
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    return {name: os.environ.get(name, "1")}


def _choose_backend(overrides: Sequence[str]) -> str:
    """Return the backend of the rendezvous: the user's `--rdzv_backend`, if any.

    Otherwise return `c10d` for restarts or a range of nodes, else `static`.
    """
    chosen = _last_value(overrides, "rdzv_backend")
    if chosen is not None:
        return chosen
    restarts = _last_value(overrides, "max_restarts") or "0"
    nodes = _last_value(overrides, "nnodes") or ""
    return ELASTIC if restarts != "0" or ":" in nodes else STATIC


def _host_option(gang: Gang, overrides: Sequence[str]) -> list[str]:
    """Return `--rdzv_conf` with `is_host`: true on the first node, which hosts torch's store.

    The value also contains the user's `--rdzv_conf`, so that the option must follow `overrides`.
    Return an empty list without a port, or if `overrides` choose the host or the endpoint.
    """
    settings = _last_value(overrides, "rdzv_conf") or ""
    if gang.port is None or _last_value(overrides, "rdzv_endpoint") or "is_host" in settings:
        return []
    is_host = f"is_host={str(gang.node_rank == 0).lower()}"
    return ["--rdzv_conf", ",".join(filter(None, (settings, is_host)))]


def _last_value(words: Sequence[str], name: str) -> str | None:
    """Return the last value of torch's option `name`, for example `max_restarts`.

    `--max-restarts=3` and `--max_restarts 3` have the value "3". Return "" if the option is the
    last word, and None if the option is absent.
    """
    value = None
    for number, word in enumerate(words):
        option, _, given = word.partition("=")
        if option.startswith("--") and option[2:].replace("-", "_") == name:
            following = words[number + 1] if number + 1 < len(words) else ""
            value = given if "=" in word else following
    return value


def _rendezvous_id() -> str:
    """Return the allocation's name, which is the name of the trial's directory; else "detcloud"."""
    folder = os.environ.get("DETCLOUD_TRIAL_DIR", "").rstrip("/")
    return folder.rpartition("/")[2] or "detcloud"


def _in_brackets(host: str) -> str:
    """Return a host for a URL: an IPv6 address in brackets, any other host unchanged."""
    return f"[{host}]" if ":" in host else host
