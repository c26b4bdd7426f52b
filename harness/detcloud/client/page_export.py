"""Copies of a cluster's web page for another server of files, such as a bucket."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from detcloud.shared.archive_names import NameChecker
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

if TYPE_CHECKING:
    from detcloud.client.client import Client

ENTRY = "index.html"
# The mark of a copy, by which the page knows whom it asks, and the next copy what it may replace.
_MARK = '<meta name="detcloud-api" content="'
_CHARSET = re.compile(r'<meta charset="utf-8"\s*/?>')
_HOSTS_OF_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


def export_page(client: Client, folder: Path, api_url: str | None = None) -> list[str]:
    """Write the page of the cluster to `folder`, as one that asks the API at `api_url`, the
    client's own by default; returns the paths of its files. What is in the folder stays, but for
    the files of a copy that was written before.

    Raises:
        DetcloudError: the folder holds something else, the address cannot be asked by a page, or
            the cluster has no page.
    """
    address = _checked_address(api_url or client.url)
    _check_folder(folder)
    description = _describe_page(client)
    paths = [str(path) for path in description["files"]]
    checker = NameChecker()
    for path in paths:
        checker.add(path, is_directory=False)
    if ENTRY not in paths:
        raise DetcloudError("the cluster has no web page; `make page` builds it in its checkout")
    # The entry comes last: after an interruption no page names files which are not there.
    for path in sorted(paths, key=lambda path: path == ENTRY):
        file_path = folder / path
        file_path.parent.mkdir(parents=True, exist_ok=True)
        with file_path.open("wb") as file:
            client.http.download(f"/ui/{path}", file)
    entry = folder / ENTRY
    policy = str(description["policy"]).replace("{api}", _origin(address))
    entry.write_text(_mark_entry(entry.read_text("utf-8"), address, policy), "utf-8")
    return paths


def _checked_address(url: str) -> str:
    parts = urlsplit(url)
    is_plain = not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise DetcloudError(f"{url} is no address of an API; expected one like https://HOST")
    if parts.scheme == "http" and parts.hostname not in _HOSTS_OF_THIS_MACHINE:
        raise DetcloudError(f"{url} would send tokens in the clear; expected https://")
    return url.rstrip("/")


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DetcloudError(f"{folder} is no folder")
    entry = folder / ENTRY
    is_copy = entry.is_file() and _MARK in entry.read_text("utf-8", errors="replace")
    if any(folder.iterdir()) and not is_copy:
        raise DetcloudError(f"{folder} holds something else than a page; name another folder")


def _describe_page(client: Client) -> Any:
    try:
        return client.http.request("GET", "/ui/files.json")
    except ApiError as error:
        if error.status != 404:
            raise
        text = "the cluster is older than this command: its page cannot be copied"
        raise DetcloudError(text) from None


def _mark_entry(text: str, address: str, policy: str) -> str:
    """The entry with the API's address and the policy of a page that asks it."""
    found = _CHARSET.search(text)
    if found is None:
        raise DetcloudError(f"the page's {ENTRY} is not as expected: it names no charset")
    lines = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}" />',
        f'{_MARK}{html.escape(address)}" />',
    )
    added = "".join(f"\n    {line}" for line in lines)
    return f"{text[: found.end()]}{added}{text[found.end() :]}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
