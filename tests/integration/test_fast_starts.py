"""Trials forked from a process with torch imported: equal to plain starts, also after failures.

The fork server may be slow, broken, killed or idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.assignment.environment import shared_environment
from detcloud.agent.processes.fork_server import (
    ANSWER_SECONDS_MAX,
    READY_SECONDS_MAX,
    ForkServer,
)
from detcloud.agent.processes.runtime import is_supervisor_gone
from detcloud.agent.slots import cpu_slots, threads_per_slot
from tests.end_to_end.outcome import weights_digest
from tests.integration.agent_process import alive
from tests.integration.trial_node import (
    TrialNode,
    command,
    exit_record,
    log_text,
    opened,
    report_lines,
)
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.end_to_end

NOISY = (Path(__file__).parents[1] / "unit/pytorch/noisy_trial.py").read_text()
THREADS = threads_per_slot(cpu_slots(1))

# Counts its runs in a file outside the trial, so that a repeated run is noticed.
COUNTED = """
import os, sys, time
os.write(os.open(RUNS, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b"run\\n")
print(open("/proc/self/cmdline").read().split("\\0")[2], flush=True)
time.sleep(STAY)
sys.exit(0)
"""
# Prints all that a program can see of its process and interpreter.
SEEN = """
import faulthandler, gc, json, locale, logging, multiprocessing, os, resource, signal, site, sys
import tempfile, threading, warnings
import numpy, torch
from detcloud import pytorch
# As every trial does sooner or later: these load more of torch, which filters warnings.
torch.use_deterministic_algorithms(False)
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
main = sys.modules["__main__"]
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
seen = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags),
    "main": [main.__name__, main.__spec__.name, main.__file__, main.__package__],
    "main has": sorted(vars(main)), "prefix": sys.prefix, "executable": sys.executable,
    "environ": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0o022),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:3],
    "streams": [[s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.fileno()]
                for s in (sys.stdout, sys.stderr)],
    "stdin": os.readlink("/proc/self/fd/0"),
    "signals": {n: repr(signal.getsignal(n)).split(" at ")[0] for n in range(1, 32)},
    "masks": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "NoNewPrivs")},
    "wakeup": signal.set_wakeup_fd(-1), "limits": [resource.getrlimit(n) for n in range(16)],
    "leads": [os.getpid() == os.getpgrp() == os.getsid(0)], "nice": os.nice(0),
    "hashes": [hash("a string"), list({"some", "names", "in", "a", "set"})],
    "home": [os.path.expanduser("~"), site.getusersitepackages(), tempfile.gettempdir()],
    "threads": [threading.active_count(), threading.current_thread() is threading.main_thread(),
                torch.get_num_threads(), torch.get_num_interop_threads()],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "recursion": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace()],
    "warnings": sorted(map(repr, warnings.filters)), "faults": faulthandler.is_enabled(),
    "logging": [logging.root.level, len(logging.root.handlers), logging.raiseExceptions],
    "processes": [multiprocessing.get_start_method(), multiprocessing.current_process().name,
                  multiprocessing.parent_process(), multiprocessing.active_children()],
    "locale": locale.setlocale(locale.LC_ALL), "usage": resource.getrusage(-1).ru_maxrss,
    "torch": [torch.is_grad_enabled(), str(torch.get_default_dtype()),
              torch.are_deterministic_algorithms_enabled(), torch.is_inference_mode_enabled(),
              torch.backends.mkldnn.enabled, torch.cuda.is_available()],
    "cwd entries": sorted(os.listdir()),
}
import random, uuid
entropy = [random.random(), float(numpy.random.random()), float(torch.rand(1)),
           torch.initial_seed(), uuid.uuid4().hex, multiprocessing.current_process().authkey.hex(),
           os.urandom(4).hex()]
print(json.dumps([seen, entropy, open("/proc/self/cmdline").read()]), flush=True)
sys.exit(0)
"""
# Ends as untidily as programs do.
UNTIDY = """
import atexit, gzip, os, sys, threading, time
atexit.register(lambda: print("atexit", flush=True))
unflushed = open("unflushed.txt", "w")
unflushed.write("all of it")
packed = gzip.open("packed.gz", "wt")
packed.write("all of it too")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread", flush=True))).start()
blocked = os.fdopen(os.pipe()[0], "rb")
threading.Thread(target=blocked.read, daemon=True).start()
sys.stdout.write("no newline")
sys.exit(3)
"""
WORKERS = """
import multiprocessing, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from detcloud import pytorch
def double(x): return 2 * x
def batches(context):
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context)
    return [batch[0].tolist() for batch in loader]
class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        print(batches("fork"))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(double, [1, 2]))
        big = torch.ones(600, 600)
        print(float((big @ big).sum()))
        sys.exit(0)
    def build_training_data_loader(self): pass
    def build_validation_data_loader(self): pass
    def train_batch(self, batch, epoch_idx, batch_idx): pass
    def evaluate_batch(self, batch): pass
"""


# Limits with which a slow start is no reason for a plain start.
PATIENT = {
    "ready_seconds_max": PATIENCE * READY_SECONDS_MAX,
    "answer_seconds_max": PATIENCE * ANSWER_SECONDS_MAX,
}


@pytest.fixture(scope="module")
def shared_fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = make_fork_server(tmp_path_factory.mktemp("template"), **PATIENT)
    yield server
    server.close()


@pytest.fixture
def fork_server(shared_fork_server: ForkServer) -> ForkServer:
    """Return the fork server that harmless tests share."""
    return shared_fork_server


@pytest.fixture
def own_fork_server(tmp_path: Path) -> Iterator[ForkServer]:
    """Yield a separate fork server for a test that breaks the server."""
    server = make_fork_server(tmp_path / "template", **PATIENT)
    yield server
    server.close()


def make_fork_server(folder: Path, **options: Any) -> ForkServer:
    environment = shared_environment(os.environ, THREADS)
    return ForkServer(folder, environment, messages.append, **options)


messages: list[str] = []


def counting_program(folder: Path, stay_seconds: float = 0.0) -> dict[str, str]:
    program = COUNTED.replace("RUNS", repr(str(folder / "runs")))
    return {"model_def.py": program.replace("STAY", str(stay_seconds))}


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


def began_in(allocation: Allocation) -> str:
    """Return the module with which the trial's process began."""
    return log_text(allocation).split()[0]


def test_forked_trial_sees_the_environment_of_a_plain_trial(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    variables = ["COLOUR=blue", "PATH=/opt/bin:/usr/bin:/bin"]
    config = {"environment": {"environment_variables": variables}}
    found: list[Any] = []
    for used in (None, fork_server, fork_server):
        node = TrialNode(tmp_path / f"node{len(found)}", used)
        allocation = node.run("4.1", {"model_def.py": SEEN}, config=config)
        text = log_text(allocation).replace(str(node.folder), "NODE")
        assert text.startswith("[{"), text
        found.append(json.loads(text))
    (plain, plain_drawn, plain_command), (forked, drawn, forked_command), (_, again, _) = found
    assert "launch.trial" in plain_command
    assert "launch.fork_server" in forked_command
    assert {k: (v, plain[k]) for k, v in forked.items() if v != plain[k]} == {}
    assert forked["environ"]["COLOUR"] == "blue"
    # All drawn numbers differ.
    assert len({*map(str, plain_drawn), *map(str, drawn), *map(str, again)}) == 3 * len(drawn)


@pytest.mark.nightly
def test_forked_trial_computes_identical_weights(tmp_path: Path, fork_server: ForkServer) -> None:
    outcomes = []
    for name, used in (("plain", None), ("forked", fork_server)):
        node = TrialNode(tmp_path / name, used)
        files = {"model_def.py": NOISY}
        spec = {"entrypoint": "model_def:NoisyTrial", "scheduling_unit": 2, "metric": "loss"}
        allocation = node.run("4.1", files, **spec)
        assert exit_record(allocation)["reason"] == "completed", log_text(allocation)
        metrics = [
            line["metrics"] for line in report_lines(allocation) if line["kind"] == "metrics"
        ]
        (manifest,) = (tmp_path / name / "store").rglob("manifest.json")
        outcomes.append((metrics, weights_digest(manifest.parent)))
    assert outcomes[0][0]
    assert outcomes[0] == outcomes[1]


def test_worker_pools_and_matrix_products_work_in_a_forked_trial(fork_server: ForkServer) -> None:
    # Worker processes share tensors through sockets, whose paths have at most 107 bytes.
    with TemporaryDirectory() as folder:
        node = TrialNode(Path(folder), fork_server)
        allocation = node.run("4.1", {"model_def.py": WORKERS})
        # Each of 600 x 600 entries is a sum of 600 ones.
        expected = ["[[0, 1, 2, 3], [4, 5, 6, 7]]", "[2, 4]", "216000000.0"]
        assert log_text(allocation).splitlines() == expected
        opened.clear()


@pytest.mark.parametrize("forked", [False, True])
def test_last_output_of_an_untidy_trial_is_kept(
    tmp_path: Path, fork_server: ForkServer, forked: bool
) -> None:
    import gzip

    node = TrialNode(tmp_path, fork_server if forked else None)
    allocation = node.run("4.1", {"model_def.py": UNTIDY})
    code = allocation.directory.code
    assert log_text(allocation) == "no newlinethread\natexit\n"
    assert exit_record(allocation)["code"] == 3
    assert (code / "unflushed.txt").read_text() == "all of it"
    assert gzip.decompress((code / "packed.gz").read_bytes()) == b"all of it too"


@pytest.mark.parametrize(
    ("files", "variable"),
    [
        ({}, "OMP_NUM_THREADS=3"),
        ({}, "PYTHONHASHSEED=9"),
        ({"typing_extensions.py": "import detcloud"}, "A=1"),
        ({"torch/__init__.py": ""}, "A=1"),
        ({"startup-hook.sh": "export A=2"}, "A=1"),
    ],
)
def test_trial_that_would_notice_the_fork_starts_plainly(
    tmp_path: Path, fork_server: ForkServer, files: dict[str, str], variable: str
) -> None:
    config = {"environment": {"environment_variables": [variable]}}
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", counting_program(tmp_path) | files, config=config)
    assert began_in(allocation) == "detcloud.launch.trial"
    assert runs(tmp_path) == 1


def test_files_that_are_not_imported_do_not_prevent_a_fork(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    # As in examples/digits: `random` is a module, and `random.yaml` is not.
    files = {"random.yaml": "", "json.md": "", "torch": ""}
    node = TrialNode(tmp_path, fork_server)
    allocation = node.run("4.1", counting_program(tmp_path) | files)
    assert began_in(allocation) == "detcloud.launch.fork_server"
    assert runs(tmp_path) == 1


@pytest.mark.nightly
def test_forked_trial_outlives_the_fork_server_and_the_next_gets_a_new_server(
    tmp_path: Path, own_fork_server: ForkServer
) -> None:
    node = TrialNode(tmp_path, own_fork_server)
    allocation = node.begin("4.1", counting_program(tmp_path, stay_seconds=0.5))
    node.watch(allocation, (tmp_path / "runs").exists)
    first = own_fork_server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    node.watch(allocation)
    assert (exit_record(allocation)["code"], began_in(allocation)) == (
        0,
        "detcloud.launch.fork_server",
    )
    second = node.run("5.1", counting_program(tmp_path))
    assert began_in(second) == "detcloud.launch.fork_server"
    assert own_fork_server.pid not in (None, first)
    assert runs(tmp_path) == 2


def test_death_of_the_supervisor_ends_the_forked_trial(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    node = TrialNode(tmp_path, fork_server)
    allocation = node.begin("4.1", counting_program(tmp_path, stay_seconds=600))
    process = allocation.directory.agent / "process.json"
    node.watch(allocation, lambda: process.exists() and (tmp_path / "runs").exists())
    found = json.loads(process.read_bytes())
    assert "fork_server" in command(found["pid"])
    os.kill(found["supervisor"], signal.SIGKILL)
    node.watch(allocation)
    assert exit_record(allocation)["reason"] == "lost"
    wait_until(lambda: not alive(found["pid"]))


def test_killed_forked_trial_gets_sigterm_and_all_descendants_end(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    program = """
import os, signal, subprocess, sys, time
def leave(*_):
    os.write(1, b"asked\\n")
signal.signal(signal.SIGTERM, leave)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"daemon %d\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    node = TrialNode(tmp_path, fork_server)
    allocation = node.begin("4.1", {"model_def.py": program})
    node.watch(allocation, lambda: "daemon" in log_text(allocation).split())
    allocation.kill(2000)
    node.watch(allocation)
    record = exit_record(allocation)
    assert (record["reason"], record["signal"]) == ("killed", signal.SIGKILL)
    words = log_text(allocation).split()
    assert "asked" in words
    assert not alive(int(words[words.index("daemon") + 1]))
    wait_until(lambda: is_supervisor_gone(allocation.directory.agent))


@pytest.mark.nightly
def test_hanging_fork_server_is_abandoned_and_the_trial_runs_once(
    tmp_path: Path,
) -> None:
    options = {**PATIENT, "answer_seconds_max": 0.5}
    fork_server = make_fork_server(tmp_path / "template", **options)
    try:
        node = TrialNode(tmp_path, fork_server)
        fork_server.warm_up()
        assert fork_server.pid is not None
        os.kill(fork_server.pid, signal.SIGSTOP)
        allocation = node.run("4.1", counting_program(tmp_path))
        assert began_in(allocation) == "detcloud.launch.trial"
        assert runs(tmp_path) == 1
        assert fork_server.pid is None
    finally:
        fork_server.close()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("exit 3", "the template process ended"),
        ("echo no such module >&2; exit 1", "no such module"),
        ("printf nonsense >&\"$3\"; sleep 60", "answered with b'nonsense'"),
        ("printf '{}' >&\"$3\"; sleep 60", "did not become ready"),
        ("printf '{\"modules\": []}' >&\"$3\"; cat <&\"$3\" >&2", "timed out"),
        ("printf '{\"modules\": []}' >&\"$3\"; printf '{\"supervisor\": true}' >&\"$3\"; sleep 60",
         "answered with True"),
    ],
)  # fmt: skip
def test_broken_fork_server_is_logged_once_and_trials_start_plainly(
    tmp_path: Path, program: str, reason: str
) -> None:
    # A descriptor of three digits needs bash.
    script = f"exec bash -c '{program.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' \"$@\""
    messages.clear()
    fork_server = make_fork_server(tmp_path / "template", command=f'set -- "$0" "$@"; {script}')
    try:
        node = TrialNode(tmp_path, fork_server)
        for name in ("4.1", "5.1"):
            assert began_in(node.run(name, counting_program(tmp_path))) == "detcloud.launch.trial"
    finally:
        fork_server.close()
    assert runs(tmp_path) == 2
    assert len(messages) == 1, messages
    assert reason in messages[0]


@pytest.mark.nightly
def test_fork_servers_killed_at_any_moment_lose_and_repeat_no_trial(
    tmp_path: Path, own_fork_server: ForkServer
) -> None:
    node = TrialNode(tmp_path, own_fork_server)
    for number in range(4):
        # On a slow machine the trial would start plainly before the fork server is ready.
        own_fork_server.warm_up()
        node.run(f"{number}.1", counting_program(tmp_path))
        victim = own_fork_server.pid
        assert victim is not None
        allocation = node.begin(f"{number}.2", counting_program(tmp_path))
        # A start takes about 40 ms: the kill happens before, during and after the start.
        time.sleep(number * 0.015)
        os.kill(victim, signal.SIGKILL)
        node.watch(allocation)
        assert exit_record(allocation)["code"] == 0, exit_record(allocation)
        assert runs(tmp_path) == 2 * number + 2
        # A dying fork server would be mistaken for a living fork server.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)


@pytest.mark.nightly
def test_idle_fork_server_ends_and_restarts_on_demand(tmp_path: Path) -> None:
    fork_server = make_fork_server(tmp_path / "template", **PATIENT, idle_seconds_max=0.2)
    try:
        node = TrialNode(tmp_path, fork_server)
        assert (
            began_in(node.run("4.1", counting_program(tmp_path))) == "detcloud.launch.fork_server"
        )
        idle = fork_server.pid
        assert idle is not None
        time.sleep(0.3)
        node.node.release_idle_resources()
        assert fork_server.pid is None
        assert not alive(idle)
        assert (
            began_in(node.run("5.1", counting_program(tmp_path))) == "detcloud.launch.fork_server"
        )
    finally:
        fork_server.close()


def test_fork_server_closes_at_once_even_during_the_start(tmp_path: Path) -> None:
    messages.clear()
    fork_server = make_fork_server(tmp_path / "template", **PATIENT, command="exec sleep 600")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fork_server.warm_up)
        wait_until(lambda: fork_server.pid)
        began = time.monotonic()
        fork_server.close()
        waiting.result()
    # Otherwise closing would wait until the fork server is ready.
    assert time.monotonic() - began < PATIENT["ready_seconds_max"] / 2
    assert (fork_server.pid, messages) == (None, [])
