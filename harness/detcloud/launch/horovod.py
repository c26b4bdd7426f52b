"""The launcher `python3 -m detcloud.launch.horovod`, which uses Horovod's launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from detcloud.launch.arguments import LauncherArguments, parse_launcher_arguments
from detcloud.launch.gang import Gang
from detcloud.launch.program import become_program, check_one_node, print_refusal, wrapped_command

NAME = "horovod"
DESCRIPTION = (
    "Starts one worker for each slot of one machine with horovodrun, whose options may stand\n"
    "before --. Horovod itself has to be installed. TRIAL is file:Class."
)
# Determined's entrypoints of trial classes have this option, which uses Horovod for several slots.
AUTO_OPTION = "--autohorovod"
AUTO_LAUNCHER = "detcloud.launch.autohorovod"
RANK_VARIABLES = "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by `horovodrun`, or by autohorovod for the option `--autohorovod`.

    For `horovodrun`, first set the variables by which workers find each other. Print the reason and
    return 1 if `horovodrun` is missing or the trial is on several machines; autohorovod accepts
    several machines. Raises SystemExit: 1 for invalid arguments, 0 after the usage for `-h`. Raises
    OSError if the system cannot run the program.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [AUTO_OPTION]:
        return become_program([sys.executable, "-m", AUTO_LAUNCHER, *words[1:]], "python")
    arguments = parse_launcher_arguments(NAME, words, DESCRIPTION)
    gang = Gang.from_environment()
    if problem := check_one_node(gang, NAME):
        return print_refusal(problem)
    os.environ.update({"USE_HOROVOD": "1", "DET_CHIEF_IP": gang.chief})
    return become_program(horovod_command(gang, arguments), "horovod")


def horovod_command(gang: Gang, arguments: LauncherArguments) -> list[str]:
    """Return the command line of `horovodrun`, which starts a worker for each slot of this machine.

    `detcloud.launch.wrap_rank` runs each worker and puts the rank before each line of output.

    `arguments.overrides`, the user's options for `horovodrun`, follow detcloud's options and
    replace them.
    """
    place = ["-np", str(gang.slots), "-H", f"localhost:{gang.slots}"]
    return ["horovodrun", *place, *arguments.overrides, *wrapped_command(RANK_VARIABLES, arguments)]


if __name__ == "__main__":
    sys.exit(main())
