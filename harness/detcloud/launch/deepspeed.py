"""The launcher `python3 -m detcloud.launch.deepspeed`, which uses DeepSpeed's launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from detcloud.launch.arguments import LauncherArguments, parse_launcher_arguments
from detcloud.launch.gang import CHANNEL_PORT_OFFSET, CHANNEL_PORT_VARIABLE, Gang
from detcloud.launch.program import become_program, check_one_node, print_refusal, wrapped_command

NAME = "deepspeed"
DESCRIPTION = (
    "Starts one worker for each slot of one machine with deepspeed, whose options may stand\n"
    "before --. DeepSpeed itself has to be installed. TRIAL is file:Class."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by `deepspeed`.

    First set the variables by which workers find each other. Print the reason and return 1 if
    `deepspeed` is missing or the trial is on several machines. Raises SystemExit: 1 for invalid
    arguments, 0 after the usage for `-h`. Raises OSError if the system cannot run the program.
    """
    arguments = parse_launcher_arguments(NAME, sys.argv[1:] if argv is None else argv, DESCRIPTION)
    gang = Gang.from_environment()
    if problem := check_one_node(gang, NAME):
        return print_refusal(problem)
    os.environ.update({"USE_DEEPSPEED": "1", "DET_CHIEF_IP": gang.chief})
    if gang.port is not None:
        os.environ[CHANNEL_PORT_VARIABLE] = str(gang.port - CHANNEL_PORT_OFFSET)
    return become_program(deepspeed_command(gang, arguments), "deepspeed")


def deepspeed_command(gang: Gang, arguments: LauncherArguments) -> list[str]:
    """Return the command line of `deepspeed`, which starts a worker for each slot of this machine.

    `detcloud.launch.wrap_rank` runs each worker and puts the rank before each line of output.

    `arguments.overrides`, the user's options for `deepspeed`, follow detcloud's options and replace
    them.
    """
    port = ["--master_port", str(gang.port)] if gang.port else []
    options = ["--num_gpus", str(gang.slots), *port, "--no_python", "--no_local_rank"]
    return ["deepspeed", *options, *arguments.overrides, *wrapped_command("RANK", arguments)]


if __name__ == "__main__":
    sys.exit(main())
