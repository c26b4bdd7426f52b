"""`detcloud backup` and `restore`: write the local cluster's state to an archive, and read the
archive.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.local.config_checker import update_progress
from detcloud.cli.local.server_modules import BACKUPS, run_module
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import time_text
from detcloud.client.home import Home
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text


def add_backup_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `make_backup`: the optional path FILE, None by default, `--checkpoints`,
    and the output form (`--json` or `--yaml`).
    """
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="the archive to write (default: detcloud-backup-TIME.tar in this folder)",
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="also back up the checkpoints in the data folder, which may be large",
    )
    add_output_options(parser, csv=False)


def make_backup(arguments: Namespace) -> int:
    """Write an archive of the local cluster's state, print the path and the size, and return 0. The
    cluster may be running.

    The default file is detcloud-backup-TIME.tar in the working folder. Checkpoints are included
    only with `--checkpoints`; without the option, a line says so. If a bucket has the objects, a
    line names the bucket. With `--json` or `--yaml`, print the report of the backup. A progress
    line is drawn on stderr.

    Raises:
        DetcloudError: the file exists, the home folder has no state, the backup failed, or the
            server is not installed.
    """
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = arguments.file or Path(f"detcloud-backup-{when}.tar")
    words = ["backup", *(["--checkpoints"] if arguments.checkpoints else []), "--", str(file)]
    report = _run("backing up", words)
    if arguments.form != "text":
        print_value(report, arguments.form)
        return 0
    print(f"{file} contains the current state of the cluster ({bytes_text(report['size_bytes'])})")
    if report["bucket"]:
        print(f"the backup has no model code and logs, which stay in {report['bucket']}")
    if not arguments.checkpoints:
        print("the backup has no checkpoints; --checkpoints adds those in the data folder")
    return 0


def add_restore_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `restore_backup`: the required path FILE, `--yes`, and the output form
    (`--json` or `--yaml`).
    """
    parser.add_argument("file", type=Path, metavar="FILE", help="an archive of `detcloud backup`")
    add_yes_option(parser)
    add_output_options(parser, csv=False)


def restore_backup(arguments: Namespace) -> int:
    """Replace the local cluster's state by an archive. Return 1 if the user declined, otherwise 0.

    The user is asked only if the cluster has a state and `--yes` is missing. A copy of the
    previous state is kept in the home folder. Then print the time of the backup, the number of
    unfinished experiments and the path of the copy, or the report with `--json` or `--yaml`. The
    restored cluster is not started.

    Raises:
        DetcloudError: the local cluster runs, the archive is missing or damaged, the server is not
            installed, or stdin is not a terminal and `--yes` is missing.
    """
    home = Home.from_environment()
    if home.running_server() is not None:
        raise DetcloudError(f"a cluster runs on {home.folder}; stop it first with `detcloud down`")
    question = f"Replace the state of the cluster in {home.folder} by {arguments.file}?"
    has_state = home.state_url() is not None or (home.folder / "state.db").exists()
    if has_state and not confirm(question, arguments):
        print("nothing was restored")
        return 1
    report = _run("restoring", ["restore", "--", str(arguments.file)])
    if arguments.form != "text":
        print_value(report, arguments.form)
        return 0
    print(
        f"the cluster in {home.folder} was restored to its state of {time_text(report['taken_ms'])}"
    )
    unfinished = count_text(report["experiments"], "unfinished experiment")
    print(f"`detcloud up` continues {unfinished} from the latest checkpoints of the backup")
    if report["bucket"]:
        print(
            f"the backup has no model code and logs; start the server with --files "
            f"'{report['bucket']}'"
        )
    if report["kept"]:
        print(f"a copy of the previous state is in {report['kept']}")
    return 0


def _run(label: str, words: list[str]) -> dict[str, Any]:
    """Run the backup module in a child process with a progress line on stderr, and return the
    module's report.

    Wait for the child without a time limit. The child works on the home folder that DETCLOUD_HOME
    names, or on ~/.detcloud.

    Args:
        label: the text at the beginning of the progress line.
        words: the arguments of the module after `--home`.

    Raises:
        DetcloudError: the server is not installed, or the module failed; the message is the
            module's error output.
    """
    home = Home.from_environment()
    with show_progress(label, lambda kib: bytes_text(kib * 1024)) as progress:
        done = run_module(
            BACKUPS,
            ["--home", str(home.folder), *words],
            lambda line: update_progress(progress, line),
        )
    if done.returncode != 0:
        raise DetcloudError(done.stderr.strip() or f"{BACKUPS} ended with {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


HANDLERS: Handlers = {
    "cluster backup": Handler(add_backup_arguments, make_backup),
    "cluster restore": Handler(add_restore_arguments, restore_backup),
}
