"""torch's launcher of workers, run in this process."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import DistNetworkError, run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


@dataclass(frozen=True, slots=True)
class WorkersEnd:
    """The result of running all workers."""

    code: int
    """The exit code: 0, 1, or 128 plus the number of a signal."""
    failure: str = ""
    """The failure of the first failed worker, or why no worker started. Empty otherwise."""


def run_workers(arguments: list[str]) -> WorkersEnd:
    """Run torch.distributed.run with these arguments, and return the result of the workers.

    Return after all workers have ended. A signal, a failed worker, invalid options, and workers
    that cannot meet are results, not exceptions. Options that torch cannot parse exit the process.
    """
    try:
        run.main(arguments)
    except SignalException as error:
        return WorkersEnd(128 + int(error.sigval))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return WorkersEnd(1, f"rank {rank} ended with exit code {failure.exitcode}")
    except DistNetworkError as error:
        # torch's traceback would hide the reason in its last line.
        return WorkersEnd(1, f"the workers could not meet: {' '.join(str(error).split())}")
    except (AssertionError, ValueError) as error:
        # torch checks some combinations of options only here.
        return WorkersEnd(1, f"torch.distributed.run refused its options: {error}")
    return WorkersEnd(0)
