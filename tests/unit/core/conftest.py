import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detcloud.core.distributed_context import DistributedContext
from tests.patience import ANSWER_SECONDS_MAX

SIZE = 3


@pytest.fixture
def run_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[DistributedContext], Any]], list[Any]]:
    """Return a function that runs `work` as three ranks in threads, and returns their results."""
    monkeypatch.setenv("DETCLOUD_GANG_FOLDER", str(tmp_path))

    def run(work: Callable[[DistributedContext], Any]) -> list[Any]:
        results: list[Any] = [None] * SIZE

        def be_rank(rank: int) -> None:
            ranks = DistributedContext(rank, SIZE, rank, SIZE, chief_ip="127.0.0.1")
            results[rank] = work(ranks)
            # A rank must not close its channel while other ranks still wait.
            ranks.allgather(None)
            ranks.close()

        threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(SIZE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ANSWER_SECONDS_MAX)
        return results

    return run
