"""The processes that are killed while storing, recording and deleting checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane.actors import addresses
from control_plane.checkpoint_gc.collector import Collector, pending_requests
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.engine.engine import Engine
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import StateTable
from detcloud import core
from detcloud.core import context_builder
from detcloud.shared import upload_parts
from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE
from detcloud.storage import build_store
from tests.conformance.kill_phases import (
    GC_ROWS,
    KILL,
    LARGE_BYTES,
    RECORD,
    RESTORE,
    SAVE,
    Enter,
    MarkedStore,
    MarkedStores,
    Moment,
    PhaseJournal,
    read_journal,
)
from tests.patience import PATIENCE
from tests.unit.api.cluster import V1, build_cluster
from tests.unit.api.exchange import call

# A process that has neither died nor ended in this time has failed.
END_SECONDS_MAX = 120.0
PARTS_MAX = 4
PART_BYTES_MAX = 200_000
# The interval of checkpoints with a large file.
LARGE_EVERY = 4
LARGE_PART_BYTES = 1 << 20
STEPS_FILE, LARGE_FILE, METADATA_FILE = "steps", "large.bin", "metadata.json"
# Children are forked from a clean process in which all work was done once.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.conformance.checkpoint_kills_rehearsed"])


@dataclass(frozen=True)
class End:
    """The end of a process: by a kill, or with `error`, which is "" for success.

    `journal` has the times and names of the entered phases.
    """

    is_killed: bool
    error: str
    journal: list[tuple[float, str]]


def run_victim(journal: Path, moment: Moment | None, work: Callable[..., None], *given: Any) -> End:
    """Run `work` in a child process, which is killed at the moment unless the work ends first."""
    reader, writer = _PROCESSES.Pipe(duplex=False)
    arguments = (writer, journal, moment, work, *given)
    process = _PROCESSES.Process(target=_run_work, args=arguments)
    process.start()
    writer.close()
    with reader:
        # The child's end closes the pipe.
        is_over = reader.poll(END_SECONDS_MAX * PATIENCE)
        if not is_over:
            process.kill()
        error = ""
        with contextlib.suppress(EOFError):
            error = reader.recv()
    process.join()
    phases = read_journal(journal)
    assert is_over, f"{work.__name__} came to no end: {phases[-3:]}"
    is_killed = process.exitcode == -KILL
    assert is_killed or error or process.exitcode == 0, f"{work.__name__}: {process.exitcode}"
    return End(is_killed, error, phases)


def _run_work(
    writer: Any, journal: Path, moment: Moment | None, work: Callable[..., None], *given: Any
) -> None:
    phases = PhaseJournal(journal, moment)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            work(phases.enter, *given)
            phases.end()
        except BaseException:
            writer.send(traceback.format_exc())
            os._exit(1)
    os._exit(0)


def train(
    enter: Enter, place: Path, environment: Mapping[str, str], steps_max: int | None = None
) -> None:
    """Continue from the trial's latest checkpoint and store more checkpoints.

    The trial ends at `steps_max`, or never if that is None.
    """
    # As with an agent, temporary folders are removed with the trial's folder.
    own = {"DETCLOUD_TRIAL_DIR": str(place), TEMPORARY_FOLDER_VARIABLE: str(place)}
    os.environ.update({**own, **environment})
    # Makes HDFS use parts for the large files, too.
    upload_parts.SIGNED_PART_BYTES = LARGE_PART_BYTES
    os.chdir(place / "code")

    def build_marked_store(*given: Any) -> MarkedStore:
        return MarkedStore(build_store(*given), enter)

    context_builder.build_store = build_marked_store  # type: ignore[assignment, attr-defined]
    enter(RESTORE)
    with core.init() as context:
        checkpoints, steps, latest = context.checkpoint, 0, context.info.latest_checkpoint
        if latest is not None:
            with checkpoints.restore_path(latest) as folder:
                steps = int((folder / STEPS_FILE).read_text())
                check_content({path.name: path.read_bytes() for path in folder.iterdir()}, steps)
        while steps_max is None or steps < steps_max:
            steps += 1
            metadata = {"steps_completed": steps}
            # Every second upload runs in the background, as in trial classes.
            behind = steps % 2 == 0
            with checkpoints.store_path(metadata, asynchronous=behind) as (folder, _):
                enter(SAVE)
                for name, content in checkpoint_content(steps):
                    (folder / name).write_bytes(content)


def record(
    enter: Enter,
    folder: Path,
    open_table: Callable[[], StateTable],
    token: str,
    request: Mapping[str, Any],
) -> None:
    """Record an agent's report, as a new server process."""
    cluster = build_cluster(folder, table=open_table())
    cluster.clock.ms = time.time_ns() // 1_000_000
    enter(RECORD)
    answer = call(cluster.app, "POST", f"{V1}/agents/node/sync", token=token, content=dict(request))
    assert answer.status == 200, answer.body


def collect(
    enter: Enter,
    folder: Path,
    open_table: Callable[[], StateTable],
    environment: Mapping[str, str],
) -> None:
    """Collect until no garbage is left."""
    os.environ.update(environment)
    table = open_table()
    engine = Engine(table, lambda: time.time_ns() // 1_000_000)
    objects = DirectoryObjectStore(folder / "objects", HmacUrlSigner(b"s" * 32))
    checkpoints = Directory(type="directory", container_path=str(folder / "checkpoints"))
    stores = MarkedStores(engine, objects, checkpoints, cluster_id="cluster-1", enter=enter)
    collector = Collector(stores)
    until = time.monotonic() + END_SECONDS_MAX
    # Types are imported at their first use, which takes longer than a collection.
    for address in (addresses.experiment(1), addresses.trial(1)):
        engine.read_state(address)
    engine.read_part(addresses.experiment(1), "definition")
    enter(GC_ROWS)
    while pending_requests(table):
        assert time.monotonic() < until, f"left to collect: {pending_requests(table)}"
        time.sleep(collector.pause_seconds)
        collector.collect()


def open_sqlite(folder: Path) -> StateTable:
    """Open the state table in a file of `folder`."""
    return SqliteTable(folder / "state.db", synchronous="NORMAL")


def checkpoint_content(steps: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the checkpoint after `steps` steps: name and content."""
    sizes = random.Random(steps)
    yield STEPS_FILE, str(steps).encode()
    for number in range(sizes.randint(1, PARTS_MAX)):
        size = sizes.randint(0, PART_BYTES_MAX)
        yield f"part-{number}.bin", hashlib.shake_128(f"{steps}/{number}".encode()).digest(size)
    if steps % LARGE_EVERY == 0:
        block = hashlib.shake_128(f"{steps}/large".encode()).digest(1 << 20)
        yield LARGE_FILE, block * (LARGE_BYTES >> 20)


def check_content(found: Mapping[str, bytes], steps: int) -> None:
    """Check that the files equal a trial's files after `steps` steps, ignoring the metadata."""
    found = {name: content for name, content in found.items() if name != METADATA_FILE}
    expected = dict(checkpoint_content(steps))
    assert found.keys() == expected.keys(), f"{[*found]} after {steps} steps, not {[*expected]}"
    wrong = [name for name, content in expected.items() if found[name] != content]
    assert not wrong, f"{wrong} are not those after {steps} steps"
