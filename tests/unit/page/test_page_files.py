"""Files of the page: encodings, caching, and no files from other folders."""

import gzip
from pathlib import Path

import pytest

from control_plane.page.page_files import ENTRY, PageFiles
from tests.unit.api.cluster import build_cluster
from tests.unit.api.exchange import call

SCRIPT = "assets/index-0123abcd.js"


@pytest.fixture
def files(tmp_path: Path) -> PageFiles:
    """A built page with a script in three encodings, next to a secret file."""
    built = tmp_path / "built"
    (built / "assets").mkdir(parents=True)
    (built / ENTRY).write_text("<!doctype html>")
    (built / SCRIPT).write_text("let a")
    (built / f"{SCRIPT}.gz").write_bytes(gzip.compress(b"let a", mtime=0))
    (built / f"{SCRIPT}.br").write_bytes(b"brotli")
    (tmp_path / "secret.js").write_text("secret")
    return PageFiles(built)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br", "br"),
        ("gzip", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("identity", ""),
        ("", ""),
        ("brotli, gzipped", ""),
    ],
)
def test_smallest_accepted_encoding_is_sent(files: PageFiles, accepted: str, encoding: str) -> None:
    file = files.find(SCRIPT, accepted)
    assert file is not None
    assert (file.encoding, file.media_type) == (encoding, "text/javascript; charset=utf-8")
    contents = {"": b"let a", "br": b"brotli", "gzip": gzip.compress(b"let a", mtime=0)}
    assert file.content == contents[encoding]


def test_hashed_files_are_immutable_and_the_entry_is_revalidated(
    files: PageFiles,
) -> None:
    script, entry = files.find(SCRIPT, ""), files.find(ENTRY, "")
    assert script is not None
    assert entry is not None
    assert "immutable" in script.cache_control
    assert entry.cache_control == "no-cache"


@pytest.mark.parametrize(
    "path", ["../secret.js", "/etc/passwd", "assets/../../secret.js", "assets", f"{SCRIPT}.gz", "."]
)
def test_other_paths_are_no_files_of_the_page(files: PageFiles, path: str) -> None:
    assert files.find(path, "gzip") is None


def test_missing_page_shows_the_build_command(tmp_path: Path) -> None:
    file = PageFiles(tmp_path / "none").find(ENTRY, "gzip")
    assert file is not None
    assert b"make page" in file.content
    assert file.cache_control == "no-store"


def test_page_is_served_without_a_token(tmp_path: Path) -> None:
    app = build_cluster(tmp_path).app
    for path in ("/", "/ui"):
        redirect = call(app, "GET", path)
        assert (redirect.status, redirect.headers["location"]) == (307, "/ui/")
    page = call(app, "GET", "/ui/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    same = call(app, "GET", "/ui/", headers=[("if-none-match", page.headers["etag"])])
    assert (same.status, same.body) == (304, b"")
    assert call(app, "GET", "/ui/%2e%2e/page_files.py").code == "not_found"
