import sys

import pytest

from detcloud.launch.arguments import parse_launcher_arguments
from detcloud.launch.gang import Gang
from detcloud.launch.rendezvous import rendezvous_arguments, rendezvous_variables
from detcloud.launch.tensorflow import tensorflow_config
from detcloud.launch.torch_distributed import torch_arguments, worker_variables
from detcloud.shared.launcher_names import LAUNCHERS, unknown_launcher

TRIAL = [sys.executable, "-m", "detcloud.launch.trial_worker", "model_def:Trial"]
TWO_NODES = {
    "DETCLOUD_NODES": "2",
    "DETCLOUD_NODE_RANK": "1",
    "DETCLOUD_HOSTS": "10.0.0.1,10.0.0.2",
    "DETCLOUD_RENDEZVOUS_PORT": "20500",
    "DETCLOUD_SLOTS": "4",
}


@pytest.mark.parametrize(
    ("words", "overrides", "command"),
    [
        ("--trial model_def:Trial", [], TRIAL),
        ("--trial=model_def:Trial", [], TRIAL),
        ("-- --trial model_def:Trial", [], TRIAL),
        ("--nnodes 1:2 -- --trial model_def:Trial", ["--nnodes", "1:2"], TRIAL),
        ("python3 train.py --epochs 3", [], ["python3", "train.py", "--epochs", "3"]),
        ("train.py a", [], [sys.executable, "train.py", "a"]),
        # Only the first `--` ends the overrides.
        ("--x -- run -- y", ["--x"], ["run", "--", "y"]),
    ],
)
def test_overrides_precede_the_first_double_dash(
    words: str, overrides: list[str], command: list[str]
) -> None:
    arguments = parse_launcher_arguments("torch_distributed", words.split(), "")
    assert (arguments.overrides, arguments.command) == (overrides, command)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "neither --trial nor a script was given"),
        ("--x --", "neither --trial nor a script was given"),
        ("--trial", "--trial needs file:Class"),
        ("--trial a:B train.py", "give one of them"),
        ("python -c pass -- a", "'python' before the first -- is not an option: a command whose"),
        ("--np 2 train.py", "'--np' is not a known option: options of its own end with --"),
    ],
)
def test_invalid_launcher_arguments_print_the_usage_and_exit_with_1(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_launcher_arguments("horovod", words.split(), "")
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "usage: python3 -m detcloud.launch.horovod [[OVERRIDES...] --] (--trial"
    )
    assert message in error


@pytest.mark.parametrize(
    "words", ["-h", "--help", "--x -h -- run", "-- -h", "--trial a:B -h", "--trial=a:B --help"]
)
def test_help_prints_the_usage_and_exits_with_0(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_launcher_arguments("deepspeed", words.split(), "What it does.")
    assert ended.value.code == 0
    assert "What it does." in capsys.readouterr().out
    # `-h` after the script belongs to the script.
    arguments = parse_launcher_arguments("deepspeed", ["train.py", "-h"], "")
    assert arguments.command[1:] == ["train.py", "-h"]


def test_torch_arguments_use_the_assigned_rendezvous() -> None:
    arguments = parse_launcher_arguments(
        "torch_distributed", ["--monitor-interval=2", "--", "run"], ""
    )
    gang = Gang.from_environment(TWO_NODES)
    words = " ".join(torch_arguments(gang, arguments))
    assert words == (
        "--nnodes 2 --nproc_per_node 4 --max_restarts 0 --node_rank 1 --master_addr 10.0.0.1 "
        "--master_port 20500 --monitor-interval=2 --module detcloud.launch.wrap_rank RANK -- run"
    )
    variables = worker_variables(gang, "/folder")
    # 20500 - 8192: the channel of detcloud listens on another port of the same host.
    assert variables["DETCLOUD_CHANNEL_PORT"] == "12308"
    assert variables["DET_CHIEF_IP"] == "10.0.0.1"
    assert Gang.from_environment({"DETCLOUD_HOSTS": "10.0.0.7"}).chief == "127.0.0.1"


STATIC = ["--node_rank", "1", "--master_addr", "10.0.0.1", "--master_port", "20500"]
ELASTIC = ["--rdzv_backend", "c10d", "--local_addr", "10.0.0.2"]
ELASTIC += ["--rdzv_endpoint", "10.0.0.1:20500", "--rdzv_id", "4.1"]


@pytest.mark.parametrize(
    ("overrides", "before", "after"),
    [
        ("--rdzv_endpoint=elsewhere:1", STATIC, []),
        ("--max-restarts=0 --nnodes 2", STATIC, []),
        ("--max-restarts 3", ELASTIC, ["--rdzv_conf", "is_host=false"]),
        ("--max_restarts=3", ELASTIC, ["--rdzv_conf", "is_host=false"]),
        ("--nnodes=1:2", ELASTIC, ["--rdzv_conf", "is_host=false"]),
        (
            "--nnodes 1:2 --rdzv-conf join_timeout=9",
            ELASTIC,
            ["--rdzv_conf", "join_timeout=9,is_host=false"],
        ),
        ("--max-restarts 3 --rdzv-conf is_host=true", ELASTIC, []),
        # For an endpoint of the user, torch itself determines the host of the store.
        ("--rdzv-backend c10d --rdzv-endpoint elsewhere:1", ELASTIC, []),
        ("--max-restarts 3 --rdzv-backend static", STATIC, []),
        ("--standalone --max-restarts 3", [], []),
    ],
)
def test_restartable_workers_use_the_elastic_rendezvous(
    overrides: str, before: list[str], after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_TRIAL_DIR", "/srv/detcloud/allocations/4.1")
    gang = Gang.from_environment(TWO_NODES)
    assert rendezvous_arguments(gang, overrides.split()) == (before, after)
    assert bool(rendezvous_variables(overrides.split())) is (before == ELASTIC)


def test_gloo_uses_the_interface_of_the_nodes_address() -> None:
    hosts = {"DETCLOUD_NODES": "2", "DETCLOUD_HOSTS": "127.0.0.2,127.0.0.3"}
    local = worker_variables(Gang.from_environment({**hosts, "DETCLOUD_NODE_RANK": "1"}), "/f")
    assert (local["GLOO_SOCKET_IFNAME"], local["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")
    # No interface has an address behind a gateway: torch selects the interface.
    unknown = worker_variables(Gang.from_environment(TWO_NODES), "/f")
    assert "GLOO_SOCKET_IFNAME" not in unknown


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        # The value of torch's launcher, although the agent gives each slot more.
        ({"OMP_NUM_THREADS": "8", "DETCLOUD_WORKER_THREADS": "1"}, "1"),
        ({"OMP_NUM_THREADS": "3", "DETCLOUD_WORKER_THREADS": "3"}, "3"),
        ({"OMP_NUM_THREADS": "8"}, "8"),
        ({}, "1"),
    ],
)
def test_a_worker_has_a_single_thread_by_default(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "DETCLOUD_WORKER_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    variables = worker_variables(Gang.from_environment({}), "/folder")
    assert variables["OMP_NUM_THREADS"] == expected


def test_tensorflow_config_lists_workers_of_all_nodes() -> None:
    assert tensorflow_config(Gang.from_environment(TWO_NODES), 5000) == {
        "cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]},
        "task": {"type": "worker", "index": 1},
    }


def test_unknown_launchers_in_entrypoints_are_found() -> None:
    for name in LAUNCHERS:
        assert unknown_launcher(f"python3 -m determined.launch.{name} --trial a:B") is None
    assert unknown_launcher("dlprof python -m detcloud.launch.mpi -- x.py") == "mpi"
    assert unknown_launcher(["python3", "-m", "determined.launch.slurm", "x.py"]) == "slurm"
    assert unknown_launcher("model_def:Trial") is None
    assert unknown_launcher("sh -c 'python3 -u -m \"determined.launch.mpi\" x.py'") == "mpi"
    assert unknown_launcher("python3 train.py --m detcloud.launch.x") is None
