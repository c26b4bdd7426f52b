"""The launcher `python3 -m detcloud.launch.torch_distributed`, which uses torch's launcher.

`torch.distributed.run` runs in this process and starts a worker for each slot of this node. The
trial's assignment defines where the workers meet: at the first host, on a port of the trial.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from detcloud.launch.arguments import LauncherArguments, parse_launcher_arguments
from detcloud.launch.gang import CHANNEL_PORT_OFFSET, CHANNEL_PORT_VARIABLE, Gang
from detcloud.launch.gang_failure import GANG_FOLDER_VARIABLE, list_failures, report_failure
from detcloud.launch.interfaces import interface_of
from detcloud.launch.program import end_with_trial
from detcloud.launch.rendezvous import rendezvous_arguments, rendezvous_variables
from detcloud.launch.stragglers import StragglerWatch
from detcloud.shared.ports import find_free_port, is_port_free

NAME = "torch_distributed"
OTHER_PORT = (
    "another program of this machine has the port. The next run of the trial gets another one; "
    "of your own, --master-port or --rdzv-endpoint gives one"
)
WORKER_THREADS_VARIABLE = "DETCLOUD_WORKER_THREADS"
DESCRIPTION = (
    "Starts one worker for each slot with torch.distributed.run, whose options may stand\n"
    "before --. "
    "Workers have RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and the like. TRIAL is file:Class."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workers until all have succeeded or a worker has failed.

    Return 0 after success, 1 after a failure, 128 + n after signal n to this process. After a
    failure, all workers are ended; print the reason and append an `exit` line to the trial's
    report. If the line cannot be written, only print the error.

    Set the workers' environment variables in this process. Raises SystemExit: 1 for invalid
    arguments, 0 after the usage for `-h`, 2 for options that torch cannot parse.
    """
    arguments = parse_launcher_arguments(NAME, sys.argv[1:] if argv is None else argv, DESCRIPTION)
    gang = _with_free_port(Gang.from_environment())
    end_with_trial()
    with tempfile.TemporaryDirectory(prefix="detcloud-gang-") as folder:
        os.environ.update(worker_variables(gang, folder))
        os.environ.update(rendezvous_variables(arguments.overrides))
        return _run_workers(torch_arguments(gang, arguments), folder)


def _with_free_port(gang: Gang) -> Gang:
    """Return `gang`. On a single machine, replace an occupied port by a free port."""
    if gang.nodes > 1 or gang.port is None or is_port_free(gang.port):
        return gang
    return replace(gang, port=find_free_port())


def worker_variables(gang: Gang, folder: str) -> dict[str, str]:
    """Return the environment variables of this node's workers.

    `folder` is the folder that the node's launcher shares with its workers. Other variables are the
    address of the first node, the number of threads, and the port of the channels if the gang has a
    port. The network interface for Gloo, and for NCCL with several nodes, is added if it is found.
    Interfaces that are set stay.
    """
    variables = {
        "USE_TORCH_DISTRIBUTED": "True",
        "DET_CHIEF_IP": gang.chief,
        GANG_FOLDER_VARIABLE: folder,
        **_thread_variables(),
    }
    if gang.port is not None:
        variables[CHANNEL_PORT_VARIABLE] = str(gang.port - CHANNEL_PORT_OFFSET)
    interface = interface_of(gang.own_host)
    if interface is not None:
        # Gloo would otherwise resolve the machine's name, which may have any address.
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", interface)
        if gang.nodes > 1:
            variables["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", interface)
    return variables


def _thread_variables() -> dict[str, str]:
    """Return the variables that set the threads of each worker.

    WORKER_THREADS_VARIABLE, if set, decides for OpenMP and MKL. Otherwise OMP_NUM_THREADS stays, or
    is 1 if it is not set, as with torch's launcher.
    """
    configured = os.environ.get(WORKER_THREADS_VARIABLE)
    if configured is not None:
        return {"OMP_NUM_THREADS": configured, "MKL_NUM_THREADS": configured}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def torch_arguments(gang: Gang, arguments: LauncherArguments) -> list[str]:
    """Return the arguments of torch.distributed.run.

    `arguments.overrides`, the user's options of torch's launcher, follow detcloud's options and
    replace them. Each worker's output lines get the rank as a prefix.
    """
    before, after = rendezvous_arguments(gang, arguments.overrides)
    return [
        *("--nnodes", str(gang.nodes), "--nproc_per_node", str(gang.slots)),
        *("--max_restarts", "0"),
        *before,
        *arguments.overrides,
        *after,
        *("--module", "detcloud.launch.wrap_rank", "RANK", "--"),
        *arguments.command,
    ]


def _run_workers(torch_argv: list[str], folder: str) -> int:
    """Run torch's launcher with `torch_argv` until all workers have ended.

    Return 0 after success, 1 after a failure, 128 + n after signal n to this process. `folder` is
    the folder that the launcher shares with its workers. Workers that hang after a failure are
    killed. After a failure, print the reason and append an `exit` line to the trial's report.
    Raises SystemExit for options that torch cannot parse.
    """
    # Imported after the arguments are parsed, because the import is slow (docs/benchmarks.md,
    # `starts`).
    from detcloud.pytorch.elastic import run_workers

    watch = StragglerWatch(folder)
    end = run_workers(torch_argv)
    watch.close()
    if end.failure:
        text = next(reversed(list_failures(folder).values()), end.failure)
        text = f"{text}; {OTHER_PORT}" if "EADDRINUSE" in text else text
        print(f"[detcloud] {text}; all workers were ended", file=sys.stderr, flush=True)
        report_failure(text)
    return end.code


if __name__ == "__main__":
    sys.exit(main())
