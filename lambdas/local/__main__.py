"""`python -m lambdas.local`: a whole cluster on this machine, until it is asked to stop."""

import argparse
import os
import sys
from pathlib import Path

from control_plane.config.problems import ConfigInvalid
from control_plane.errors import RequestError
from control_plane.state.table import TableError
from lambdas.local.cluster import serve
from lambdas.local.home import HomeFolder, HomeInUse, HomeInvalid


def main() -> int:
    """Run the server; 0 after a requested stop, 1 when it cannot start."""
    options = _options()
    os.umask(0o077)
    try:
        home = HomeFolder(options.home)
        with home.claim():
            serve(home, options.slots, options.port, options.config)
    except (HomeInvalid, HomeInUse, OSError) as error:
        return _print_error(str(error))
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
    print(f"detcloud server: {why}", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lambdas.local", description="Run a cluster on this machine."
    )
    parser.add_argument("--home", type=Path, required=True, help="the cluster's data folder")
    parser.add_argument("--slots", type=int, help="use CPU slots instead of the detected devices")
    parser.add_argument("--port", type=int, help="where to listen; by default a free port")
    parser.add_argument("--config", type=Path, help="a cluster configuration to begin with")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
