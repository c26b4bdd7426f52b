"""Figures of the use of tunnels: the start of a shell, and the price of the relay."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.cluster import ClusterFailed, detcloud, embedded_cluster
from bench.figures import Row, Scale, at_most, progress, row_without_value
from infra.aws import prices as aws_prices
from infra.gcp import prices as gcp_prices

SHELL_SECONDS_MAX = 3.0
AWS_DOLLARS_MAX, GOOGLE_DOLLARS_MAX = 0.02, 0.10
_SHELL = ("shell", "start", "--config", "resources.slots=0")
_MEBIBYTES_PER_GIB = 1024


def tunnel_use(scale: Scale) -> Iterator[Row]:
    """Yield the time until a new shell shows output, and the dollars an hour of a relay."""
    yield _measure_shell(scale.runs)
    with progress("the relays of both stacks"):
        aws, google = aws_dollars(), google_dollars()
    what = "dollars an hour of a relay while a tunnel is open"
    nobody = "nothing afterwards"
    yield at_most(f"{what}, AWS", aws, AWS_DOLLARS_MAX, "$", beside="for ten minutes more")
    yield at_most(f"{what}, Google Cloud", google, GOOGLE_DOLLARS_MAX, "$", beside=nobody)


def aws_dollars() -> float:
    """Return the price of an hour of the Fargate task that a team's stack describes."""
    from tests.unit.infra.graphs import VISION, graph

    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        stack = graph("vision", VISION, Path(folder) / "stack")
    [task] = stack.inputs_of("TaskDefinition").values()
    processors, gibibytes = int(task["cpu"]) / 1024, int(task["memory"]) / _MEBIBYTES_PER_GIB
    machine = processors * aws_prices.FARGATE_VCPU_HOUR + gibibytes * aws_prices.FARGATE_GIB_HOUR
    return machine + aws_prices.ADDRESS_HOUR


def google_dollars() -> float:
    """Return the price of an hour of the Cloud Run service that a team's stack describes."""
    from tests.unit.infra.gcp_graphs import VISION, gcp_graph

    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        stack = gcp_graph("vision", VISION, Path(folder) / "stack")
    template = stack.inputs_of("cloudrunv2/service")["relay"]["template"]
    limits = template["containers"][0]["resources"]["limits"]
    gibibytes = int(limits["memory"].removesuffix("Mi")) / _MEBIBYTES_PER_GIB
    second = int(limits["cpu"]) * gcp_prices.VCPU_SECOND + gibibytes * gcp_prices.GIB_SECOND
    return 3600 * second


def _measure_shell(runs: int) -> Row:
    """Measure the time from the start of `detcloud shell start` to the output of a program."""
    what = "`detcloud shell start` on a warm machine to the first output"
    try:
        with embedded_cluster("--slots", "1") as folder:
            # The first shell makes the machine warm.
            seconds = [_start_shell(folder) for _ in range(runs + 1)][1:]
    except (ClusterFailed, OSError, subprocess.TimeoutExpired) as error:
        return row_without_value(what, error)
    slowest = f"slowest {max(seconds):.2f} s"
    return at_most(what, median(seconds), SHELL_SECONDS_MAX, "s", beside=slowest)


def _start_shell(folder: Path) -> float:
    """Return the seconds until a program in a new shell has printed the time.

    Raise ClusterFailed if the program prints something else.
    """
    begin = time.time()
    output = detcloud(folder, *_SHELL, "python3", "-c", "import time; print(time.time())")
    if not re.fullmatch(r"\d+\.\d+", output.strip()):
        raise ClusterFailed(f"the program in the shell printed {output!r:.200}")
    return float(output) - begin
