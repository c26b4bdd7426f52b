"""Publication of a built site as one version among others, as static files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TypedDict

VERSIONS = "versions.json"
LATEST = "latest"
_VERSION = re.compile(r"\d+(\.\d+)*")
# The address of the site leads to the newest release.
_REDIRECT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>detcloud</title>
<meta http-equiv="refresh" content="0; url=latest/index.html">
<a href="latest/index.html">The documentation of detcloud</a>
</html>
"""


class Version(TypedDict):
    """A published version, in the format that the theme's version menu reads."""

    version: str
    title: str
    aliases: list[str]


class PublicationRefused(ValueError):
    """An error that names the wrong argument and the remedy."""


def publish(site: Path, folder: Path, version: str) -> list[Version]:
    """Copy a built site into `folder`/`version` and return all versions, newest first.

    An earlier copy of the version is replaced. If the version is the newest release, the folder
    `latest` and the address of the folder lead to the version. `dev` is a version that is never the
    latest.
    """
    if version != "dev" and not _VERSION.fullmatch(version):
        raise PublicationRefused(f"version: {version!r} is neither a number like 0.2.0 nor dev")
    if not (site / "index.html").is_file():
        raise PublicationRefused(f"{site} has no index.html: build the site first, with make docs")
    folder.mkdir(parents=True, exist_ok=True)
    _replace(site, folder / version)
    others = [known for known in read_versions(folder) if known["version"] != version]
    names = sorted([version, *(known["version"] for known in others)], key=_order, reverse=True)
    released = [name for name in names if name != "dev"]
    latest = released[0] if released else names[0]
    versions: list[Version] = [
        {"version": name, "title": name, "aliases": [LATEST] if name == latest else []}
        for name in names
    ]
    if latest == version:
        _replace(site, folder / LATEST)
    (folder / "index.html").write_text(_REDIRECT, encoding="utf-8")
    (folder / VERSIONS).write_text(json.dumps(versions, indent=2) + "\n", encoding="utf-8")
    return versions


def read_versions(folder: Path) -> list[Version]:
    """Return the published versions of a folder, newest first; empty before the first."""
    path = folder / VERSIONS
    if not path.exists():
        return []
    try:
        versions: list[Version] = json.loads(path.read_text(encoding="utf-8"))
        return [
            {"version": known["version"], "title": known["title"], "aliases": known["aliases"]}
            for known in versions
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise PublicationRefused(
            f"{path} is not a list of versions ({error}): restore the file, or delete it and "
            "publish every version again"
        ) from error


def _replace(site: Path, target: Path) -> None:
    """Replace a folder by a copy of the site. A reader sees the former or the new folder."""
    fresh = target.with_name(f".{target.name}.fresh")
    former = target.with_name(f".{target.name}.former")
    for path in (fresh, former):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(site, fresh)
    if target.exists():
        target.rename(former)
    fresh.rename(target)
    shutil.rmtree(former, ignore_errors=True)


def _order(version: str) -> tuple[bool, tuple[int, ...]]:
    """Order versions by their numbers; `dev` is below all releases."""
    if version == "dev":
        return False, ()
    return True, tuple(int(part) for part in version.split("."))
