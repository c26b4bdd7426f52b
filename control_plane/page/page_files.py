"""The files of the web page, with media types, compressed forms and cache lifetimes."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

BUILT = Path(__file__).with_name("built")
ENTRY = "index.html"

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The build adds compressed forms of a file to the file's folder, with these suffixes.
_ENCODINGS = {"br": ".br", "gzip": ".gz"}
# For a file whose name contains a digest of the content, and which therefore never changes.
_FOREVER = "public, max-age=31536000, immutable"
_ASK_EACH_TIME = "no-cache"

_NOT_BUILT = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>detcloud</title>
<h1>The web page is not built here</h1>
<p>Run <code>make page</code> in the checkout, which needs Node 20 or newer, and load this again.
<p>Everything else works without it: <code>detcloud --help</code>.
"""


@dataclass(frozen=True)
class PageFile:
    """A file of the page in a single encoding."""

    content: bytes
    """The bytes in the encoding."""
    media_type: str
    encoding: str
    """The content encoding `br` or `gzip`, or "" for an uncompressed file."""
    etag: str
    """The value of the ETag header, quotes included."""
    cache_control: str
    """The value of the Cache-Control header."""


class PageFiles:
    """The files of the page in a folder. Each call reads the folder again."""

    def __init__(self, folder: Path = BUILT) -> None:
        self._folder = folder

    def find(self, path: str, accepted: str) -> PageFile | None:
        """Return the file at a path below the folder, in the best encoding that exists.

        Prefer Brotli, then gzip, then no encoding. Return None if no file of a known type has the
        path. For ENTRY before the build, return a page that explains how to build the page.

        Args:
            path: the path below the folder, with slashes.
            accepted: the value of the request's Accept-Encoding header.
        """
        media_type = _MEDIA_TYPES.get(Path(path).suffix)
        if media_type is None or path not in self._names():
            return _not_built() if path == ENTRY else None
        encoding = next(
            (name for name in _ENCODINGS if self._has_encoding(path, name, accepted)), ""
        )
        return self._read(path, encoding, media_type)

    def paths(self) -> list[str]:
        """Return the sorted paths of all files without the compressed forms.

        Empty before the build.
        """
        return sorted(name for name in self._names() if Path(name).suffix in _MEDIA_TYPES)

    def _names(self) -> frozenset[str]:
        files = (file for file in self._folder.rglob("*") if file.is_file())
        return frozenset(file.relative_to(self._folder).as_posix() for file in files)

    def _has_encoding(self, path: str, encoding: str, accepted: str) -> bool:
        accepts = re.search(
            rf"(?:^|[\s,]){encoding}\s*(?:,|$|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))", accepted
        )
        return accepts is not None and f"{path}{_ENCODINGS[encoding]}" in self._names()

    def _read(self, path: str, encoding: str, media_type: str) -> PageFile:
        content = (self._folder / f"{path}{_ENCODINGS.get(encoding, '')}").read_bytes()
        is_hashed = path.startswith("assets/")
        return PageFile(
            content,
            media_type,
            encoding,
            f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            _FOREVER if is_hashed else _ASK_EACH_TIME,
        )


def _not_built() -> PageFile:
    return PageFile(_NOT_BUILT, _MEDIA_TYPES[".html"], "", '"not-built"', "no-store")
