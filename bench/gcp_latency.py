"""Waits of trials on Google Cloud for the next directive after a validation.

The stack is on the emulators of Firestore and Cloud Storage. The warm functions are separate
processes, called by the events of commits, and the agent is a script. Further rows depend less on a
busy machine: requests and processor time per validation, and the emulators' time for a commit and
its event.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, progress, row_without_target
from bench.machine import cpu_seconds
from bench.validation_latency import (
    CODE,
    CODE_SHA256,
    POOLS,
    ValidationAgent,
    latency_rows,
    submit_experiment,
)
from control_plane.objects.store import model_code_key
from control_plane.state.table import Expect, Key, Put
from tests.emulators.deployment_gcp import GcpDeployment, deployment
from tests.emulators.eventarc import Trigger
from tests.emulators.fake_gcs import fake_gcs
from tests.emulators.firestore import firestore

P50_MS_MAX, P95_MS_MAX = 150, 400
# Nothing is suggested here, nor deleted.
FUNCTIONS = ("api", "advance", "tick", "wake")
BARE_COMMITS = 30
ANSWER_SECONDS_MAX = 30.0


def gcp_latency(scale: Scale) -> Iterator[Row]:
    """Run a search. Yield waits for directives, requests, processor time and bare commits."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (
            firestore(folder) as databases,
            fake_gcs(folder) as gcs,
            deployment(databases, gcs, folder, "bench", POOLS, FUNCTIONS) as up,
        ):
            with progress("the configuration in force"):
                # Later ticks have no configuration to apply.
                up.tick()
            up.store_object("objects", str(model_code_key(CODE_SHA256)), CODE)
            with progress(f"{BARE_COMMITS} commits alone"):
                bare_ms = median(_measure_events(up))
            asked, seconds = Counter(up.events.faults.asked), _function_seconds()
            with progress(f"a search of {scale.latency_trials} trials"):
                agent = ValidationAgent(up.url, up.token)
                agent.work(submit_experiment(up.url, up.token, scale.latency_trials))
            asked, seconds = up.events.faults.asked - asked, _function_seconds() - seconds
    yield from latency_rows(agent, "on Google's emulators", P50_MS_MAX, P95_MS_MAX)
    validations = len(agent.waits_ms)
    kinds = ", ".join(f"{count / validations:.1f} {verb}" for verb, count in sorted(asked.items()))
    what = "requests at Firestore for each validation of a search, all functions'"
    yield row_without_target(what, asked.total() / validations, "requests", beside=kinds)
    what = "processor time of the functions for each validation of a search"
    yield row_without_target(what, 1000 * seconds / validations, "ms")
    yield row_without_target(
        "a commit of one row and its event, on Google's emulators: p50", bare_ms, "ms"
    )


def _function_seconds() -> float:
    """The processor time of the functions that this process runs."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [int(pid) for path in tasks for pid in path.read_text().split()]
    served = b"lambdas.gcp.serve"
    return sum(
        cpu_seconds(pid) for pid in children if served in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def _measure_events(up: GcpDeployment) -> Iterator[float]:
    """Yield the milliseconds from the start of each commit to the arrival of the event."""
    heard: queue.Queue[float] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put(time.perf_counter())
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    up.events.triggers["bench"] = Trigger("rows/{row}", f"http://127.0.0.1:{server.server_port}")
    try:
        for number in range(BARE_COMMITS):
            began = time.perf_counter()
            up.table.commit((Put(Key("bench", f"{number}"), 1, b"", Expect.ABSENT),))
            yield 1000 * (heard.get(timeout=ANSWER_SECONDS_MAX) - began)
    finally:
        del up.events.triggers["bench"]
        server.shutdown()
        server.server_close()
