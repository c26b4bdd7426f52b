"""A large file to a local S3 server and back, compared with boto3's transfer manager and s5cmd."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_least, at_most, number, progress
from bench.store_transfer import COPY, KEY, SOURCE

PEERS = {"boto3": "boto3's transfer manager", "s5cmd": "s5cmd"}
SHARE_MIN_PERCENT, MEMORY_MAX_MB = 90, 64
_MB = 1 << 20


def stores(scale: Scale) -> Iterator[Row]:
    """Yield rates and memory of each client, by turns in separate processes."""
    # The emulator is imported only for this figure.
    from tests.emulators.seaweedfs import seaweedfs

    size = scale.stored_bytes
    kinds = ["detcloud", *(peer for peer in PEERS if find_spec(peer))]
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with TemporaryDirectory(prefix="detcloud-bench-") as place:
        folder = Path(place)
        (folder / "server").mkdir()
        digest = _write_source(folder / SOURCE, size)
        with (
            seaweedfs(folder / "server") as server,
            progress(f"{scale.store_runs} transfers of {size // _MB} MB by each of {len(kinds)}"),
        ):
            # The first of each warms the disk.
            for run in range(scale.store_runs + 1):
                # The order alternates, because the first client waits for the last writes of the
                # former client.
                for kind in kinds if run % 2 else reversed(kinds):
                    bucket = server.place()
                    taken = _transfer(kind, folder, json.dumps(asdict(bucket)))
                    assert _digest(folder / COPY) == digest, f"{kind} fetched something else"
                    server.client.delete_object(Bucket=bucket.name, Key=KEY)
                    if run:
                        found[kind].append(taken)
    yield from _rows(found, size)


def _rows(found: dict[str, list[dict[str, Any]]], size: int) -> Iterator[Row]:
    for way, what in enumerate(("to", "from")):
        rates = {
            kind: size / _MB / median(run["seconds"][way] for run in runs)
            for kind, runs in found.items()
        }
        ours = rates.pop("detcloud")
        yield at_least(
            f"{size // _MB} MB {what} S3: of the fastest peer's rate",
            100 * ours / max(rates.values()),
            SHARE_MIN_PERCENT,
            "%",
            beside=f"{number(ours)} MB/s, {_describe_peers(rates, 'MB/s')}",
        )
    memory = {kind: max(run["memory"] for run in runs) / _MB for kind, runs in found.items()}
    ours = memory.pop("detcloud")
    beside = _describe_peers(memory, "MB")
    yield at_most("memory that both ways take", ours, MEMORY_MAX_MB, "MB", beside=beside)


def _describe_peers(figures: dict[str, float], unit: str) -> str:
    """Return the figures of the peers, and the missing peers, as text."""
    missing = [f"{name} is not installed" for peer, name in PEERS.items() if peer not in figures]
    return ", ".join(
        [*(f"{PEERS[peer]} {number(figure)} {unit}" for peer, figure in figures.items()), *missing]
    )


def _transfer(kind: str, folder: Path, place: str) -> dict[str, Any]:
    (folder / COPY).unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.store_transfer", kind, str(folder), place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken: dict[str, Any] = json.loads(done.stdout)
    return taken


def _write_source(path: Path, size: int) -> str:
    """Write an incompressible file and return its digest."""
    with path.open("wb") as file:
        for _ in range(0, size, _MB):
            file.write(os.urandom(_MB))
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
