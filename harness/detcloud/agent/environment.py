"""The environment a trial starts with: an allow-list, never the agent's own environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.directory import AllocationDirectory
    from detcloud.agent.slots import Slot

INHERITED = ("LANG", "LANGUAGE", "LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def trial_environment(
    own: Mapping[str, str],
    spec: Mapping[str, Any],
    directory: AllocationDirectory,
    slots: Sequence[Slot],
    threads: int,
) -> dict[str, str]:
    """The variables of a trial.

    `own` is the agent's environment, of which only PATH, locale, time zone, library and certificate
    paths pass. `slots` are those the trial holds, `threads` the CPU threads for each of them. The
    configuration's variables may override all but the last group.
    """
    environment = {k: v for k, v in own.items() if k in INHERITED or k.startswith("LC_")}
    interpreter = str(Path(sys.executable).parent)
    environment["PATH"] = f"{interpreter}:{own.get('PATH') or DEFAULT_PATH}"
    environment["TMPDIR"] = str(directory.home / "tmp")
    environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(threads)
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONHASHSEED"] = str(int(spec.get("trial_seed") or 0) % 2**32)
    devices = [slot for slot in slots if slot.type == "cuda"]
    configured = configured_variables(spec.get("config"), cuda=bool(devices))
    environment.update(configured)
    environment["HOME"] = str(directory.home)
    environment["DETCLOUD_TRIAL_DIR"] = str(directory.path)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.uuid for slot in devices)
    packages = str(Path(__file__).resolve().parents[2])
    later = configured.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{packages}{os.pathsep}{later}" if later else packages
    return environment


def configured_variables(config: object, *, cuda: bool) -> dict[str, str]:
    """`environment.environment_variables`: a map, a list of NAME=VALUE, or one such per device."""
    section = config.get("environment") if isinstance(config, dict) else None
    variables = section.get("environment_variables") if isinstance(section, dict) else None
    if isinstance(variables, dict) and _is_by_device(variables):
        names = ("cuda", "gpu") if cuda else ("cpu",)
        variables = next((variables[name] for name in names if variables.get(name)), None)
    if isinstance(variables, dict):
        pairs = [(str(name), str(value)) for name, value in variables.items()]
    elif isinstance(variables, list):
        pairs = [(name, value) for name, _, value in (str(v).partition("=") for v in variables)]
    else:
        pairs = []
    return {name: value for name, value in pairs if name and "\0" not in name + value}


def _is_by_device(variables: dict[str, Any]) -> bool:
    return all(
        name in ("cpu", "cuda", "gpu", "rocm") and (value is None or isinstance(value, list | dict))
        for name, value in variables.items()
    )
