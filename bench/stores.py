"""A large file to an S3 server on this machine and back, beside boto3's transfer manager."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_least, at_most, number, progress
from bench.store_transfer import COPY, KEY, SOURCE

KINDS = ("detcloud", "boto3")
SHARE_MIN_PERCENT, MEMORY_MAX_MB = 90, 64
_MB = 1 << 20


def stores(scale: Scale) -> Iterator[Row]:
    """Rates and memory of both, in turns, each in a process of its own."""
    # The emulator loads when this figure is asked for, not with the bench.
    from tests.emulators.seaweedfs import seaweedfs

    size = scale.stored_bytes
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with TemporaryDirectory(prefix="detcloud-bench-") as place:
        folder = Path(place)
        (folder / "server").mkdir()
        digest = _write_source(folder / SOURCE, size)
        with (
            seaweedfs(folder / "server") as server,
            progress(f"{scale.store_runs} transfers of {size // _MB} MB by each of two"),
        ):
            # The first of each warms the disk.
            for run in range(scale.store_runs + 1):
                # Who is first has the other's last writes to wait for.
                for kind in KINDS if run % 2 else reversed(KINDS):
                    bucket = server.place()
                    taken = _transfer(kind, folder, json.dumps(asdict(bucket)))
                    assert _digest(folder / COPY) == digest, f"{kind} fetched something else"
                    server.client.delete_object(Bucket=bucket.name, Key=KEY)
                    if run:
                        found[kind].append(taken)
    yield from _rows(found, size)


def _rows(found: dict[str, list[dict[str, Any]]], size: int) -> Iterator[Row]:
    for way, what in enumerate(("to", "from")):
        ours, theirs = (
            size / _MB / median(it["seconds"][way] for it in found[kind]) for kind in KINDS
        )
        beside = f"{number(ours)} MB/s, boto3's transfer manager {number(theirs)} MB/s"
        yield at_least(
            f"{size // _MB} MB {what} S3: of boto3's rate",
            100 * ours / theirs,
            SHARE_MIN_PERCENT,
            "%",
            beside=beside,
        )
    ours, theirs = (max(it["memory"] for it in found[kind]) / _MB for kind in KINDS)
    beside = f"boto3's transfer manager {number(theirs)} MB"
    yield at_most("memory that both ways take", ours, MEMORY_MAX_MB, "MB", beside=beside)


def _transfer(kind: str, folder: Path, place: str) -> dict[str, Any]:
    (folder / COPY).unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.store_transfer", kind, str(folder), place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken: dict[str, Any] = json.loads(done.stdout)
    return taken


def _write_source(path: Path, size: int) -> str:
    """Write a file that cannot be compressed; its digest."""
    with path.open("wb") as file:
        for _ in range(0, size, _MB):
            file.write(os.urandom(_MB))
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
