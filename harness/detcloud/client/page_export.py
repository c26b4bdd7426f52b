"""Copies of a cluster's web page for another file server, for example a bucket."""

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
# The tag that marks a copy and names the API that the page uses. The next export may overwrite a
# folder with a marked page.
_MARK = '<meta name="detcloud-api" content="'
_CHARSET = re.compile(r'<meta charset="utf-8"\s*/?>')
_HOSTS_OF_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


def export_page(client: Client, folder: Path, api_url: str | None = None) -> list[str]:
    """Write a copy of the cluster's web page to `folder`, and return the files' relative paths.

    The page uses the API at `api_url`, or the client's address for None. Files of an earlier copy
    are overwritten, and other files in the folder stay.

    Raises:
        DetcloudError: the folder has files but no earlier copy, the address is no https address
            (http is allowed for this machine), the cluster is too old or has no page, or a path is
            unsafe.
        ApiError: the cluster refuses a request.
        Unreachable: the cluster does not answer.
        OSError: a file cannot be written.
    """
    address = _checked_address(api_url or client.http.base_url)
    _check_folder(folder)
    description = _describe_page(client)
    paths = [str(path) for path in description["files"]]
    checker = NameChecker()
    for path in paths:
        checker.add(path, is_directory=False)
    if ENTRY not in paths:
        raise DetcloudError("the cluster has no web page; `make page` builds it in its checkout")
    # The entry page is written last, so that it never names a file that does not exist yet.
    for path in sorted(paths, key=lambda path: path == ENTRY):
        file_path = folder / path
        file_path.parent.mkdir(parents=True, exist_ok=True)
        with file_path.open("wb") as file:
            client.http.download(f"/ui/{path}", file)
    entry = folder / ENTRY
    policy = str(description["policy"]).replace("{api}", _origin(address))
    entry.write_text(_mark_entry(entry.read_text("utf-8"), address, policy), "utf-8")
    return paths


def page_link(client: Client, view: str) -> str | None:
    """Return the address of a view of the web page, for example of `experiments/7`.

    Return None if the cluster has no page. The cluster is asked once.

    Raises:
        DetcloudError: the cluster is older than this client.
        ApiError: the cluster refuses the request.
        Unreachable: the cluster does not answer.
    """
    has_page = ENTRY in _describe_page(client)["files"]
    return f"{client.http.base_url}/ui/#/{view}" if has_page else None


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
    """Return the entry page with tags for the API's address and the content security policy.

    Raises DetcloudError if the page has no charset tag to insert them after.
    """
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
