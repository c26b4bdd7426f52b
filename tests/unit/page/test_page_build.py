"""The built page: unit tests, size, and the compressed answer of a function."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.page.page_files import BUILT, ENTRY
from tests.conftest import require
from tests.emulators.server import missing
from tests.unit.api.cluster import build_cluster

WEB = Path(__file__).parents[3] / "web"
# The limits of the page's own code, compressed: of the first view, and of all views.
FIRST_VIEW_BYTES_MAX = 45_000
COMPRESSED_BYTES_MAX = 170_000
_STATIC_IMPORT = r'(?:import|from)\s*"\./([^"]*\.js)"'


@pytest.fixture
def built_page() -> Path:
    """Return the folder of the page's files; skip the test if the page is not built."""
    if not (BUILT / ENTRY).exists():
        missing("page", "the web page is not built; `make page` builds it")
    return BUILT


@pytest.mark.usefixtures("built_page")
def test_unit_tests_of_the_page_pass() -> None:
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    done = subprocess.run(
        [WEB / "node_modules" / ".bin" / "vitest", "run", "--maxWorkers=1"],
        cwd=WEB,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_first_view_of_the_page_is_small(built_page: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in built_page.rglob("*.br")}
    assert len(sizes) >= 3, "the entry, a script and a style"
    first = _loaded_files(built_page, ENTRY)
    # The start page is the first view after a sign-in.
    [home] = built_page.glob("assets/home_view-*.js")
    first |= _loaded_files(built_page, f"assets/{home.name}")
    first_sizes = {name: sizes[f"{Path(name).name}.br"] for name in first}
    assert sum(first_sizes.values()) <= FIRST_VIEW_BYTES_MAX, first_sizes
    assert sum(sizes.values()) <= COMPRESSED_BYTES_MAX, sizes


def _loaded_files(built_page: Path, name: str) -> set[str]:
    """Return the files that a browser loads with a file of the page, directly or over others.

    Imports that are calls, `import("./view.js")`, load later views and do not count.
    """
    loaded, waiting = set[str](), [name]
    while waiting:
        name = waiting.pop()
        if name not in loaded:
            loaded.add(name)
            text = (built_page / name).read_text()
            linked = r'(?:src|href)="\./(assets/[^"]*)"' if name == ENTRY else _STATIC_IMPORT
            waiting += [f"assets/{Path(found).name}" for found in re.findall(linked, text)]
    return loaded


def test_page_has_no_foreign_sources_and_no_inline_code(built_page: Path) -> None:
    entry = (built_page / ENTRY).read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', entry)
    assert sources
    for source in sources:
        assert source.startswith(("./assets/", "data:image/svg+xml,")), source
    assert re.findall(r"<script[^>]*>[^<]", entry) == []
    assert "<style" not in entry


def test_function_sends_the_page_compressed(built_page: Path, tmp_path: Path) -> None:
    mangum = require("mangum")
    # Mangum uses the thread's event loop, which exists in a function's process.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        answer = mangum.Mangum(build_cluster(tmp_path).app, lifespan="off")(_event("/ui/"), None)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    headers = answer["headers"]
    assert (answer["statusCode"], headers["content-encoding"]) == (200, "gzip")
    assert answer["isBase64Encoded"] is True
    assert base64.b64decode(answer["body"]) == (built_page / f"{ENTRY}.gz").read_bytes()


def _event(path: str) -> dict[str, Any]:
    """Return a request of API Gateway to a function, in payload format 2.0."""
    http = {"method": "GET", "path": path, "sourceIp": "203.0.113.1", "protocol": "HTTP/1.1"}
    return {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"host": "detcloud.test", "accept-encoding": "gzip"},
        "requestContext": {"http": http, "stage": "$default"},
        "isBase64Encoded": False,
    }
