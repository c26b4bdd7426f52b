import json
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core.channel import Patience, open_channels
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.preempt import PreemptContext, PreemptMode
from detcloud.shared.trial_directory import Directives, Preemption, TrialDirectory
from tests.forked_process import await_exit_code, fork
from tests.patience import PATIENCE, PROCESS_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import enter, make_trial


def test_values_are_exchanged_in_rank_order(run_ranks: Any) -> None:
    def exchange(ranks: DistributedContext) -> Any:
        mine = ranks.rank * 10
        return ranks.gather(mine), ranks.allgather(mine), ranks.broadcast(mine), ranks.cross_size

    values = [0, 10, 20]
    worker_results = (None, values, 0, 1)
    assert run_ranks(exchange) == [(values, values, 0, 1), worker_results, worker_results]


def test_ranks_stop_at_the_same_check_after_a_request_to_a_single_rank(run_ranks: Any) -> None:
    stop = Preemption(None, "pause")
    heard = threading.Event()

    def count(ranks: DistributedContext) -> tuple[int, bool]:
        def read() -> Directives:
            return Directives(preempt=stop if ranks.rank == 2 and heard.is_set() else None)

        preempt = PreemptContext(read, ranks)
        checks = 0
        while not preempt.should_preempt():
            # A request without a deadline does not end a workload.
            assert not preempt.must_stop_at_next_batch()
            checks += 1
            if checks == 50 * (ranks.rank + 1):
                heard.set()
        preempt.close()
        return checks, preempt.was_seen

    counts = run_ranks(count)
    assert counts[0][1]
    assert counts == [counts[0]] * len(counts)


def test_chief_learns_of_a_request_seen_by_a_worker(run_ranks: Any) -> None:
    def stop(ranks: DistributedContext) -> bool:
        def read() -> Directives:
            return Directives(preempt=Preemption(1, "a notice") if ranks.rank == 1 else None)

        preempt = PreemptContext(read, ranks)
        while not preempt.should_preempt():
            pass
        preempt.close()
        # Otherwise the interrupted operation would count as left without a metric.
        return preempt.is_requested()

    assert run_ranks(stop) == [True, True, True]


@pytest.mark.parametrize("address", [None, ("127.0.0.1", 0)], ids=["file", "port"])
def test_duplicate_ranks_are_an_immediate_error(
    address: tuple[str, int] | None, tmp_path: Path
) -> None:
    place: Any = str(tmp_path / "chief.sock")
    if address is not None:
        with socket.create_server(address) as probe:
            place = probe.getsockname()
    failures: list[str] = []
    # An unreferenced connection would be closed.
    channels: list[Any] = []

    def join(rank: int) -> None:
        try:
            channels.extend(open_channels(rank, 3, place, b"key", count=1))
        except DetcloudError as error:
            failures.append(str(error))

    chief = threading.Thread(target=join, args=(0,), daemon=True)
    chief.start()
    join_seconds = 5.0
    first = threading.Thread(target=join, args=(1,), daemon=True)
    first.start()
    first.join(join_seconds * PATIENCE)
    # The chief waits for rank 2 now; a second chief and a second rank 1 are refused.
    join(0)
    assert "two processes of this trial claim to be rank 0 of 3" in failures[0]
    join(1)
    chief.join(join_seconds * PATIENCE)
    assert not chief.is_alive()
    assert failures[1].startswith("two processes of this trial claim to be rank 1 of 3")


def test_waiting_processes_name_the_missing_ranks(tmp_path: Path) -> None:
    place = str(tmp_path / "chief.sock")
    named: list[tuple[int, tuple[int, ...]]] = []

    def join(rank: int) -> None:
        def note(missing: tuple[int, ...]) -> None:
            named.append((rank, missing))

        for channel in open_channels(rank, 3, place, b"key", 1, Patience(0.2, note)):
            channel.close()

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(3)]
    threads[2].start()
    wait_until(lambda: named)
    # Rank 0 does not listen yet.
    assert named == [(2, (0,))]
    threads[0].start()
    wait_until(lambda: len(named) > 1)
    threads[1].start()
    for thread in threads:
        thread.join(PROCESS_SECONDS_MAX)
    # Each missing set is named once: rank 1 alone, unless rank 2 took more than 0.2 s to retry.
    assert named[1:] in ([(0, (1,))], [(0, (1, 2)), (0, (1,))])


class Strategies(ModuleType):
    """Substitute for the module `tensorflow` with `gpus` GPUs; a strategy is just its name."""

    def __init__(self, gpus: int) -> None:
        super().__init__("tensorflow")
        names = ("MultiWorkerMirroredStrategy", "MirroredStrategy", "get_strategy")
        makers = {name: (lambda made=name: made) for name in names}
        self.distribute = SimpleNamespace(**makers)
        self.config = SimpleNamespace(list_physical_devices=lambda kind: [kind] * gpus)


def test_tf_config_determines_rank_and_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Any, ...]] = []

    class PlaceRecorder(DistributedContext):
        def __init__(self, *place: int, chief_ip: str | None = None) -> None:
            made.append((*place, chief_ip))

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", Strategies(1))
    assert PlaceRecorder.from_tf_config()[1] == "get_strategy"
    monkeypatch.setitem(sys.modules, "tensorflow", Strategies(2))
    assert PlaceRecorder.from_tf_config()[1] == "MirroredStrategy"
    cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert PlaceRecorder.from_tf_config()[1] == "MultiWorkerMirroredStrategy"
    # Rank 1 of 2, with a worker per machine.
    assert made == [(None,), (None,), (1, 2, "10.0.0.1")]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief"}}))
    with pytest.raises(DetcloudError, match="supports only workers"):
        PlaceRecorder.from_tf_config()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(DetcloudError, match="needs TensorFlow"):
        PlaceRecorder.from_tf_config()


def test_preempt_modes_select_the_asking_ranks(run_ranks: Any) -> None:
    def ask(ranks: DistributedContext) -> Any:
        def read() -> Directives:
            return Directives(preempt=Preemption() if ranks.rank == 1 else None)

        alone = PreemptContext(read, ranks, PreemptMode.WorkersAskSelf).should_preempt()
        chief = PreemptContext(read, ranks, PreemptMode.ChiefOnly)
        if ranks.rank == 0:
            return alone, chief.should_preempt()
        with pytest.raises(DetcloudError, match="preempt_mode is ChiefOnly"):
            chief.should_preempt()
        return alone, None

    assert run_ranks(ask) == [(False, False), (True, None), (False, None)]


def test_only_the_chief_stores_checkpoints(run_ranks: Any, tmp_path: Path) -> None:
    def upload(ranks: DistributedContext) -> str:
        context = core.CheckpointContext(
            core.TrialSpec(), None, lambda *_, **__: None, on_cluster=True, distributed=ranks
        )
        if ranks.rank != 2:
            return ""
        with pytest.raises(DetcloudError) as refused:
            context.upload(tmp_path, {"steps_completed": 1})
        return str(refused.value)

    text = run_ranks(upload)[2]
    assert text.startswith("rank 2 cannot store a checkpoint, only the chief can: ")


def test_a_second_process_cannot_report_as_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    claim = trial / "out" / ".rank-0"

    def claim_again() -> None:
        # Only the child opens the file, because closing the file drops a process's locks.
        claim.write_text("7 5")
        directory = TrialDirectory(trial)
        with pytest.raises(DetcloudError, match=r"detcloud\.launch\.torch_distributed"):
            directory.claim_rank()
        directory.close()
        assert claim.read_text() == "7 5"

    with core.init():
        # The thread that describes the environment has ended before the fork.
        wait_until((trial / "out" / "report-0.jsonl").exists)
        assert await_exit_code(fork(claim_again)) == 0
    # A second context after the first has ended is valid.
    with core.init():
        pass


def test_deepspeed_variables_determine_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # DeepSpeed names the workers of a node LOCAL_SIZE, and the nodes CROSS_SIZE.
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    for name, value in {**place, "CROSS_RANK": "0", "CROSS_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = core.DistributedContext.from_deepspeed()
    assert (alone.rank, alone.size, alone.local_rank, alone.local_size) == (0, 1, 0, 1)
    assert (alone.cross_rank, alone.cross_size) == (0, 1)
    # Torch's launcher sets LOCAL_WORLD_SIZE, which is accepted as well.
    monkeypatch.delenv("LOCAL_SIZE")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert core.DistributedContext.from_deepspeed().local_size == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(DetcloudError, match=r"LOCAL_SIZE .*launch\.deepspeed"):
        core.DistributedContext.from_deepspeed()


def test_missing_launcher_variables_are_a_key_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KeyError) as caught:
        DistributedContext.from_torch_distributed()
    assert isinstance(caught.value, DetcloudError)
    assert str(caught.value).startswith("RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE are not")
