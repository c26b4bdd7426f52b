"""The launcher over torch's own, `python3 -m detcloud.launch.torch_distributed`.

One worker for each slot of this node, under `torch.distributed.run` in this process. Where the
workers of a trial meet is the assignment's: the first host, and a port that no other trial has.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence

from detcloud.launch.arguments import LauncherArguments, parse_launcher_arguments
from detcloud.launch.gang import CHANNEL_PORT_OFFSET, CHANNEL_PORT_VARIABLE, Gang
from detcloud.launch.gang_failure import GANG_FOLDER_VARIABLE, list_failures, report_failure
from detcloud.launch.interfaces import interface_of
from detcloud.launch.program import end_with_trial
from detcloud.launch.rendezvous import rendezvous_arguments, rendezvous_variables
from detcloud.launch.stragglers import StragglerWatch

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
    """Run the workers until all have ended well or one has failed; the exit code."""
    arguments = parse_launcher_arguments(NAME, sys.argv[1:] if argv is None else argv, DESCRIPTION)
    gang = Gang.from_environment()
    end_with_trial()
    with tempfile.TemporaryDirectory(prefix="detcloud-gang-") as folder:
        os.environ.update(worker_variables(gang, folder))
        os.environ.update(rendezvous_variables(arguments.overrides))
        return _run_workers(torch_arguments(gang, arguments), folder)


def worker_variables(gang: Gang, folder: str) -> dict[str, str]:
    """The variables of all workers of this node; `folder` is the node's own, for its workers."""
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
        # Gloo would look for the address of the machine's name, which may be any.
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", interface)
        if gang.nodes > 1:
            variables["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", interface)
    return variables


def _thread_variables() -> dict[str, str]:
    """The threads of each worker: as torch's launcher has it one, unless the user set another."""
    configured = os.environ.get(WORKER_THREADS_VARIABLE)
    if configured is not None:
        return {"OMP_NUM_THREADS": configured, "MKL_NUM_THREADS": configured}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def torch_arguments(gang: Gang, arguments: LauncherArguments) -> list[str]:
    """The arguments of torch.distributed.run; overrides come after ours, which they replace."""
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
    # After the arguments were read: the import takes seconds (docs/benchmarks.md, `starts`).
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
