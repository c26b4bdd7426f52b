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
from detcloud.launch.gang_failure import GANG_FOLDER_VARIABLE, failure_text, report_failure

NAME = "torch_distributed"
DESCRIPTION = (
    "Starts one worker for each slot with torch.distributed.run, whose options may stand\n"
    "before --. "
    "Workers have RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and the like. TRIAL is file:Class."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the workers until all have ended well or one has failed; the exit code."""
    arguments = parse_launcher_arguments(NAME, sys.argv[1:] if argv is None else argv, DESCRIPTION)
    gang = Gang.from_environment()
    with tempfile.TemporaryDirectory(prefix="detcloud-gang-") as folder:
        os.environ.update(worker_variables(gang, folder))
        return _run_workers(torch_arguments(gang, arguments))


def worker_variables(gang: Gang, folder: str) -> dict[str, str]:
    """The variables of all workers of this node; `folder` is the node's own, for its workers."""
    variables = {
        "USE_TORCH_DISTRIBUTED": "True",
        "DET_CHIEF_IP": gang.chief,
        GANG_FOLDER_VARIABLE: folder,
        # Torch's own default, which it would set with a warning.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    if gang.port is not None:
        variables[CHANNEL_PORT_VARIABLE] = str(gang.port - CHANNEL_PORT_OFFSET)
    if gang.nodes == 1 and sys.platform == "linux":
        # Gloo would look for the address of the machine's name.
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return variables


def torch_arguments(gang: Gang, arguments: LauncherArguments) -> list[str]:
    """The arguments of torch.distributed.run; overrides come after ours, which they replace."""
    place = ["--master_addr", gang.chief, "--master_port", str(gang.port)] if gang.port else []
    return [
        *("--nnodes", str(gang.nodes), "--nproc_per_node", str(gang.slots)),
        *("--node_rank", str(gang.node_rank), "--max_restarts", "0"),
        *place,
        *arguments.overrides,
        *("--module", "detcloud.launch.wrap_rank", "RANK", "--"),
        *arguments.command,
    ]


def _run_workers(torch_argv: list[str]) -> int:
    # After the arguments were read: the import takes seconds (docs/benchmarks.md, `starts`).
    from detcloud.pytorch.elastic import run_workers

    end = run_workers(torch_argv)
    if end.failure:
        text = failure_text() or end.failure
        print(f"[detcloud] {text}: the other workers were ended", file=sys.stderr, flush=True)
        report_failure(text)
    return end.code


if __name__ == "__main__":
    sys.exit(main())
