"""Torch's own launcher of workers, run in this process."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import DistNetworkError, run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


@dataclass(frozen=True, slots=True)
class WorkersEnd:
    """The end of all workers: an exit code, and the `failure` of the first one that failed, or
    why none of them began.
    """

    code: int
    failure: str = ""


def run_workers(arguments: list[str]) -> WorkersEnd:
    """Run torch.distributed.run with these arguments until all workers have ended."""
    try:
        run.main(arguments)
    except SignalException as error:
        return WorkersEnd(128 + int(error.sigval))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return WorkersEnd(1, f"rank {rank} ended with exit code {failure.exitcode}")
    except DistNetworkError as error:
        # The traceback of torch's own processes would hide what it says in its last line.
        return WorkersEnd(1, f"the workers could not meet: {' '.join(str(error).split())}")
    except (AssertionError, ValueError) as error:
        # Only numbers and names of options that do not fit together get so far.
        return WorkersEnd(1, f"torch.distributed.run refused its options: {error}")
    return WorkersEnd(0)
