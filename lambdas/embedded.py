"""`python -m lambdas.embedded`: a whole cluster on this machine, until it is told to stop."""

import argparse
import os
import sys
from pathlib import Path

from control_plane.actors.step import Refused
from control_plane.api.errors import ApiError
from control_plane.config import ConfigInvalid
from control_plane.state.table import TableError
from lambdas.home import HomeBroken, HomeFolder, HomeTaken
from lambdas.local_cluster import serve


def main() -> int:
    """Run the server; 0 after a requested stop, 1 when it cannot start."""
    options = _options()
    os.umask(0o077)
    try:
        home = HomeFolder(options.home)
        with home.claim():
            serve(home, options.slots, options.port, options.config)
    except (HomeBroken, HomeTaken, OSError) as error:
        return _failed(str(error))
    except ConfigInvalid as error:
        return _failed("\n".join(problem.text(str(options.config)) for problem in error.problems))
    except (ApiError, Refused) as error:
        why = error.message if isinstance(error, ApiError) else str(error)
        return _failed(f"{options.config} cannot be applied: {why}")
    except TableError as error:
        return _failed(f"the state table {home.state} cannot be used: {error}")
    return 0


def _failed(why: str) -> int:
    print(f"detcloud server: {why}", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lambdas.embedded", description="Run a cluster on this machine."
    )
    parser.add_argument("--home", type=Path, required=True, help="the cluster's data folder")
    parser.add_argument("--slots", type=int, help="CPU slots instead of the devices found")
    parser.add_argument("--port", type=int, help="where to listen; by default a free port")
    parser.add_argument("--config", type=Path, help="a cluster configuration to begin with")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
