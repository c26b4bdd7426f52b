"""The launcher of an installed agent, `python -I ROOT/launcher.py`. It imports no other module.

The launcher replaces itself by the agent of the present version. A new version that ends several
times before its first answer from the cluster is replaced by the version before.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

STARTS_MAX = 3


def main() -> None:
    """Start the agent in place of this process. Raise OSError if the agent cannot be started."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if root.is_dir() else root.parent
    settings = json.loads((root / "agent.json").read_bytes())
    version = choose_version(root / "versions", Path(settings["work"]))
    command = agent_command(root, version, settings)
    os.execve(command[0], command, {**os.environ, **settings.get("environment", {})})


def choose_version(versions: Path, work: Path) -> Path:
    """Return the folder of the version to start, and count the start.

    After STARTS_MAX starts without an answer from the cluster, make the previous version the
    present one, and record the failed version in `rejected.json`. Without a previous version, the
    present version is started again.
    """
    name = str((versions / "current").readlink())
    state = _read(work / "starts.json")
    starts = int(state.get("starts", 0)) + 1 if state.get("version") == name else 1
    confirmed = _read(work / "confirmed.json").get("version")
    if confirmed != name and starts > STARTS_MAX:
        try:
            former = str((versions / "previous").readlink())
        except OSError:
            former = name
        if former != name and (versions / former).is_dir():
            _write(work / "rejected.json", {"version": name})
            link(versions / "current", former)
            name, starts = former, 1
    _write(work / "starts.json", {"version": name, "starts": starts})
    return versions / name


def agent_command(root: Path, version: Path, settings: dict[str, object]) -> list[str]:
    """Return the command line of the agent.

    The version's own path is used instead of the link, so that running trials keep their version.
    """
    work = Path(str(settings["work"]))
    command = [str(version / "bin/python"), "-P", "-m", "detcloud.agent"]
    for option in ("url", "name", "pool", "label", "pin"):
        if settings.get(option):
            command += [f"--{option}", str(settings[option])]
    command += ["--work-dir", str(work), "--token-file", str(work / "join.token")]
    command += ["--installed", str(root)]
    if not settings.get("updates", True):
        command.append("--no-updates")
    options = settings.get("options")
    return command + ([str(word) for word in options] if isinstance(options, list) else [])


def link(path: Path, target: str) -> None:
    """Replace the link at `path` atomically."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: dict[str, object]) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)


if __name__ == "__main__":
    main()
