"""`python -m local_cluster`: run a whole cluster on this machine until SIGTERM or SIGINT."""

import argparse
import os
import sys
from pathlib import Path

from control_plane.config.problems import ConfigInvalid
from control_plane.errors import RequestError
from control_plane.state.table import TableError
from local_cluster.cluster import serve
from local_cluster.home import HomeFolder, HomeInUse, HomeInvalid


def main() -> int:
    """Run the server of an embedded cluster in the folder --home.

    Return the exit status: 0 after a requested stop, or 1 with the error on stderr if the server
    cannot start or fails. An example is a folder that another server uses. Invalid options end the
    process with status 2. All new files are readable by the owner only, since the process's umask
    is changed.
    """
    options = _options()
    os.umask(0o077)
    try:
        home = HomeFolder(options.home)
        with home.claim():
            serve(home, options.slots, options.port, options.config)
    except (HomeInvalid, HomeInUse) as error:
        return _print_error(str(error))
    except OSError as error:
        is_failed_write = error.errno is not None and error.filename is None
        return _print_error(f"{options.home}: {error.strerror}" if is_failed_write else str(error))
    except ConfigInvalid as error:
        return _print_error(
            "\n".join(problem.text(str(options.config)) for problem in error.problems)
        )
    except RequestError as error:
        return _print_error(f"{options.config} cannot be applied: {error.message}")
    except TableError as error:
        return _print_error(f"the state table {home.state} cannot be used: {error}")
    return 0


def _print_error(why: str) -> int:
    """Print an error to stderr, and return the exit status 1."""
    print(f"detcloud server: {why}", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    """Return the options of the command line. Invalid options end the process with status 2.

    The options are those of `serve`: `home` (the path of the data folder), `slots`, `port` and
    `config`. The last three are None if not given.
    """
    parser = argparse.ArgumentParser(
        prog="python -m local_cluster", description="Run a cluster on this machine."
    )
    parser.add_argument("--home", type=Path, required=True, help="the cluster's data folder")
    parser.add_argument("--slots", type=int, help="use CPU slots instead of the detected devices")
    parser.add_argument("--port", type=int, help="where to listen; by default where it was")
    parser.add_argument("--config", type=Path, help="a cluster configuration to begin with")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
