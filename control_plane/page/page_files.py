"""The files of the web page: what each is, and how long a browser may keep it."""

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
# A file's compressed forms lie beside it; the build makes them.
_ENCODINGS = {"br": ".br", "gzip": ".gz"}
# What is named after its content never changes.
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
    """One file in one encoding, "" for none."""

    content: bytes
    media_type: str
    encoding: str
    etag: str
    cache_control: str


class PageFiles:
    """The files below a folder, which is read when they are asked for."""

    def __init__(self, folder: Path = BUILT) -> None:
        self._folder = folder

    def find(self, path: str, accepted: str) -> PageFile | None:
        """The file at a path below the folder, in the smallest encoding of an Accept-Encoding
        header; None where there is no such file.
        """
        media_type = _MEDIA_TYPES.get(Path(path).suffix)
        if media_type is None or path not in self._names():
            return _not_built() if path == ENTRY else None
        encoding = next(
            (name for name in _ENCODINGS if self._has_encoding(path, name, accepted)), ""
        )
        return self._read(path, encoding, media_type)

    def paths(self) -> list[str]:
        """The paths of all files, without their compressed forms; none before the build."""
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
