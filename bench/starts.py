"""The cost of a trial's process in addition to training, for plain starts and for forks of a
server.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from bench.figures import Row, Scale, at_most, progress, row_without_target
from detcloud.agent.agent import SCAN_SECONDS
from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.assignment.environment import shared_environment
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.fork_server import ForkServer
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.slots import cpu_slots, threads_per_slot

PLAIN_MS_MAX = 3000
FORKED_MS_MAX = 100
END_SECONDS_MAX = 60.0
STAY_SECONDS = 1.0

# The first statement is the usual first line of a PyTorch trial's module. The class stands in for a
# training: it prints the time at which training would begin, sleeps as long as requested, and ends.
MODULE = """
import time
first = time.monotonic()
import torch
from detcloud.pytorch import PyTorchTrial
loaded = time.monotonic()
class Trial(PyTorchTrial):
    def __init__(self, context):
        began = time.monotonic()
        time.sleep(context.get_hparam("stay"))
        ended = time.monotonic()
        print(first, loaded, began, ended)
        raise SystemExit(0)
    def build_training_data_loader(self): pass
    def build_validation_data_loader(self): pass
    def train_batch(self, batch, epoch_idx, batch_idx): pass
    def evaluate_batch(self, batch): pass
"""


class Start(NamedTuple):
    """Milliseconds of a start.

    From the request: to the module's first line, to the imported torch, and to the call of the
    trial's class. `end_ms`: from the trial's end to the recorded exit.
    """

    first_ms: float
    loaded_ms: float
    began_ms: float
    end_ms: float

    @property
    def overhead_ms(self) -> float:
        """The time of detcloud, without the imports of the user's module."""
        return self.first_ms + self.end_ms


def starts(scale: Scale) -> Iterator[Row]:
    """Medians of the runs through the agent's own code, from the cluster's entry to the exit."""
    runs = scale.start_runs
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        machine = Machine(Path(folder), None)
        with progress(f"plain starts, {runs} runs"):
            yield _overhead("plain", [machine.run(f"1.{n}") for n in range(runs)], PLAIN_MS_MAX)
        environment = shared_environment(os.environ, threads_per_slot(machine.slots))
        template = ForkServer(Path(folder) / "template", environment, _complain)
        machine = Machine(Path(folder), template)
        try:
            with progress("the template and its first start"):
                first = machine.run("2.0")
            with progress(f"forked starts, {runs} runs"):
                forked = [machine.run(f"3.{n}") for n in range(runs)]
            yield _overhead("forked", forked, FORKED_MS_MAX)
            beside = "it waits for the template"
            yield row_without_target("the first forked one", first.overhead_ms, "ms", beside=beside)
            yield from _memory(machine, template)
        finally:
            template.close()


class Machine:
    """A node with a single slot in a folder, without a cluster."""

    def __init__(
        self, folder: Path, template: ForkServer | None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """`files` are the model code, by default the module above."""
        archive = _archive(files or {"model_def.py": MODULE.encode()})
        digest = hashlib.sha256(archive).hexdigest()

        def download(_: str, file: BinaryIO) -> int:
            return file.write(archive)

        self.slots = cpu_slots(1)
        self._code = {"sha256": digest, "size": len(archive), "path": "/"}
        cache = CodeCache(folder / "cache", download)
        self._node = Node(folder, self.slots, ProcessRuntime(template), cache, _complain)
        self._node.adopt()

    def run(self, name: str) -> Start:
        """Run a trial from the request to the recorded exit and return the times. Raise
        RuntimeError if the trial fails.
        """
        requested = time.monotonic()
        allocation = self.begin(name)
        look(allocation, lambda: not allocation.is_active)
        recorded = time.monotonic()
        words = allocation.directory.log.read_text().split()
        try:
            first, loaded, began, ended = map(float, words)
        except ValueError:
            raise RuntimeError(f"the trial did not run: {' '.join(words)}") from None
        moments = (first - requested, loaded - requested, began - requested, recorded - ended)
        return Start(*(moment * 1000 for moment in moments))

    def begin(self, name: str, stay_seconds: float = 0.0, **fields: object) -> Allocation:
        """Request a trial and return its allocation. `fields`: additional fields of the spec."""
        spec = {"version": 1, "entrypoint": "model_def:Trial", "hparams": {"stay": stay_seconds}}
        spec |= fields
        entry = {"allocation": name, "state": "run", "directives": {"revision": 1}, "slots": [0]}
        self._node.apply_desired_entry({**entry, "spec": spec, "code": self._code})
        return next(one for one in self._node.allocations() if one.allocation == name)


def look(allocation: Allocation, done: Callable[[], bool]) -> None:
    """Poll an allocation at the agent's pace until `done` returns true. Raise TimeoutError."""
    give_up_at = time.monotonic() + END_SECONDS_MAX
    while not done():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{allocation.allocation} did not end")
        time.sleep(SCAN_SECONDS)
        allocation.poll()
        allocation.scan_output()


def _overhead(how: str, started: list[Start], target_ms: float) -> Row:
    value = median(start.overhead_ms for start in started)
    parts = (median(moments) for moments in zip(*started, strict=True))
    beside = "first line {:.0f}, torch {:.0f}, training {:.0f} ms; end to record {:.0f} ms"
    what = f"a trial's process, {how}"
    return at_most(what, value, target_ms, "ms", beside=beside.format(*parts))


def _memory(machine: Machine, template: ForkServer) -> Iterator[Row]:
    """Yield memory rows during a forked trial. Shared memory counts proportionally."""
    alone = _memory_of(template.pid)
    allocation = machine.begin("4.1", STAY_SECONDS)
    look(allocation, (allocation.directory.agent / "process.json").exists)
    time.sleep(STAY_SECONDS / 2)
    process = json.loads((allocation.directory.agent / "process.json").read_bytes())
    trial, supervisor = _memory_of(process["pid"]), _memory_of(process["supervisor"])
    beside = f"PSS; {_memory_of(template.pid).shared_mib:.0f} MiB beside a trial"
    yield row_without_target(
        "memory of the template, alone", alone.shared_mib, "MiB", beside=beside
    )
    beside = f"PSS; nobody else's {trial.own_mib:.0f} MiB; its supervisor {supervisor}"
    yield row_without_target("memory of a forked trial", trial.shared_mib, "MiB", beside=beside)
    look(allocation, lambda: not allocation.is_active)


class _Memory(NamedTuple):
    """Proportional set size, and memory that no other process shares."""

    shared_mib: float
    own_mib: float

    def __str__(self) -> str:
        return f"{self.shared_mib:.0f} and {self.own_mib:.0f} MiB"


def _memory_of(pid: int | None) -> _Memory:
    """Return the memory of a process, or zeros for an ended process."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return _Memory(0.0, 0.0)
    lines = (line.split() for line in rollup.splitlines()[1:])
    kib = {words[0]: int(words[1]) for words in lines}
    own = kib["Private_Clean:"] + kib["Private_Dirty:"]
    return _Memory(kib["Pss:"] / 1024, own / 1024)


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _complain(message: str) -> None:
    print(f"  {message}", file=sys.stderr, flush=True)
