"""The exchange of values between the processes of a trial."""

from __future__ import annotations

import copy
import importlib
import json
import os
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from detcloud.core.channel import Address, Channel, channel_key, local_address, open_channels
from detcloud.shared.errors import DetcloudError
from detcloud.shared.parameter_names import accept_names

Value = TypeVar("Value")

CHANNEL_PORT = 12360
_TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HOROVOD_VARIABLES = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
)


class NoLauncher(DetcloudError, KeyError):
    """Raised if no launcher has set the variables of this process.

    Subclass of KeyError, because scripts catch the KeyError of `os.environ` to run without a
    launcher.
    """

    def __str__(self) -> str:
        return str(self.args[0])


class DistributedContext:
    """A process of a trial, and the exchange of values between the trial's processes.

    With `chief_ip`, the processes exchange values over sockets. The constructor then returns after
    all processes have created their contexts. A single process needs no `chief_ip`. Several
    processes without `chief_ip` cannot exchange values: `gather` and the like raise DetcloudError.
    """

    def __init__(  # noqa: PLR0913 - the last four are Determined's.
        self,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int | None = None,
        pull_port: int | None = None,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        """Connect to the trial's processes by `chief_ip`. Without `chief_ip`, open no connection.

        Args:
            rank: the number of this process, from 0. Rank 0 is the chief.
            size: the number of processes.
            local_rank: the number of this process on its node, from 0.
            local_size: the number of processes on this node.
            cross_rank: the number of this node; None if all nodes have equally many processes.
            cross_size: the number of nodes; None if all nodes have equally many processes.
            chief_ip: the address of the first node.
            pub_port: ignored, as are the next three; they exist for scripts written for Determined.
            pull_port: ignored.
            port_offset: ignored.
            force_tcp: ignored.

        Raises:
            DetcloudError: a process does not connect within 10 minutes, two processes claim a rank,
                or the chief cannot listen.
        """
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.cross_rank = rank // local_size if cross_rank is None else cross_rank
        self.cross_size = size // local_size if cross_size is None else cross_size
        self._channel: Channel | None = None
        self._local_channel: Channel | None = None
        self.control: Channel | None = None
        self._background: Channel | None = None
        if chief_ip is not None:
            self._connect(chief_ip)

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the context of a worker of torch's launcher, after all processes have connected.

        `detcloud.launch.torch_distributed` uses torch's launcher. `cross_rank` and `cross_size` are
        the variables GROUP_RANK and GROUP_WORLD_SIZE, if set.

        Args:
            chief_ip: the address of the first node, by default MASTER_ADDR, then 127.0.0.1.

        Raises:
            NoLauncher: RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE is no number.
            DetcloudError: a process does not connect within 10 minutes, two processes claim a rank,
                or the chief cannot listen.
        """
        rank, size, local_rank, local_size = _numbers(_TORCH_VARIABLES, "torch_distributed")
        chief = chief_ip or os.environ.get("MASTER_ADDR") or "127.0.0.1"
        cross: dict[str, Any] = {
            name: int(os.environ[variable])
            for name, variable in (("cross_rank", "GROUP_RANK"), ("cross_size", "GROUP_WORLD_SIZE"))
            if os.environ.get(variable, "").isdigit()
        }
        return cls(rank, size, local_rank, local_size, **cross, chief_ip=chief)

    @classmethod
    def from_horovod(cls, hvd: Any = None, chief_ip: str | None = None) -> DistributedContext:
        """Return the context of a Horovod worker, after all processes have connected.

        Args:
            hvd: Horovod's module after `hvd.init()`. None for Horovod's six environment variables,
                from HOROVOD_RANK to HOROVOD_CROSS_SIZE.
            chief_ip: the address of the first node, by default DET_CHIEF_IP, then 127.0.0.1.

        Raises:
            NoLauncher: a needed variable is no number.
            DetcloudError: a process does not connect within 10 minutes, two processes claim a rank,
                or the chief cannot listen.
        """
        if hvd is not None:
            names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
            numbers = [int(getattr(hvd, name)()) for name in names]
        else:
            numbers = _numbers(_HOROVOD_VARIABLES, "horovod")
        chief = chief_ip or os.environ.get("DET_CHIEF_IP") or "127.0.0.1"
        rank, size, local_rank, local_size, cross_rank, cross_size = numbers
        return cls(rank, size, local_rank, local_size, cross_rank, cross_size, chief)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the context of a worker of DeepSpeed's launcher, after all processes have
        connected.

        The variables are RANK, WORLD_SIZE, LOCAL_RANK, and LOCAL_WORLD_SIZE or else LOCAL_SIZE, the
        size of a node.

        Args:
            chief_ip: the address of the first node, by default DET_CHIEF_IP, then MASTER_ADDR, then
                127.0.0.1.

        Raises:
            NoLauncher: a variable is no number.
            DetcloudError: a process does not connect within 10 minutes, two processes claim a rank,
                or the chief cannot listen.
        """
        local_size = "LOCAL_WORLD_SIZE" if os.environ.get("LOCAL_WORLD_SIZE") else "LOCAL_SIZE"
        rank, size, local_rank, local = _numbers((*_TORCH_VARIABLES[:3], local_size), "deepspeed")
        chief = chief_ip or os.environ.get("DET_CHIEF_IP") or os.environ.get("MASTER_ADDR")
        return cls(rank, size, local_rank, local, chief_ip=chief or "127.0.0.1")

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext, Any]:
        """Return the context of the worker that TF_CONFIG describes, and TensorFlow's strategy.

        The strategy is MultiWorkerMirroredStrategy for several workers, MirroredStrategy for one
        worker with several GPUs, and otherwise TensorFlow's default. Without TF_CONFIG, the process
        is the only worker. The first worker's host is the `chief_ip`. Return after all workers have
        connected.

        Raises:
            DetcloudError: TensorFlow is not installed, the task is no worker, a worker does not
                connect within 10 minutes, two workers claim a rank, or the chief cannot listen.
            ValueError: TF_CONFIG is no JSON.
            KeyError: TF_CONFIG lacks a field.
        """
        try:
            strategies = importlib.import_module("tensorflow").distribute
        except ImportError:
            raise DetcloudError(
                "from_tf_config needs TensorFlow, which is not installed: add it to the image, or "
                "`pip install tensorflow` in startup-hook.sh"
            ) from None
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        task = config.get("task") or {"type": "worker", "index": 0}
        if task["type"] != "worker":
            raise DetcloudError(
                f"TF_CONFIG has the task {task['type']!r}: from_tf_config supports only workers"
            )
        workers = (config.get("cluster") or {}).get("worker") or [""]
        if len(workers) > 1:
            chief = workers[0].rpartition(":")[0]
            context = cls(int(task["index"]), len(workers), chief_ip=chief)
            return context, strategies.MultiWorkerMirroredStrategy()
        devices = importlib.import_module("tensorflow").config.list_physical_devices("GPU")
        is_mirrored = len(devices) > 1
        return cls(), strategies.MirroredStrategy() if is_mirrored else strategies.get_strategy()

    @property
    def can_exchange(self) -> bool:
        """Whether the processes can exchange values: with connections, or as a single process."""
        return self.size == 1 or self._channel is not None

    @accept_names(stuff="value")
    def gather(self, value: Value) -> list[Value] | None:
        """Return the values of all ranks, in the order of the ranks, on rank 0. None on the other
        ranks.

        Every rank must call this. A process alone gets a list of its own value.

        Args:
            value: the value of this rank, which is pickled.

        Raises:
            DetcloudError: the processes cannot exchange values, or another process has exited.
        """
        return self._require_channel().gather(value)

    @accept_names(stuff="value")
    def allgather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in the order of the ranks, on every rank.

        Every rank must call this. A process alone gets a list of its own value.

        Args:
            value: the value of this rank, which is pickled.

        Raises:
            DetcloudError: the processes cannot exchange values, or another process has exited.
        """
        channel = self._require_channel()
        return cast("list[Value]", channel.broadcast(channel.gather(value)))

    @accept_names(stuff="value")
    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank.

        Every rank must call this. A process alone gets `value` itself.

        Args:
            value: the value, which is pickled. The argument of other ranks is ignored.

        Raises:
            DetcloudError: the processes cannot exchange values, or another process has exited.
        """
        return cast("Value", self._require_channel().broadcast(value))

    @accept_names(stuff="value")
    def gather_local(self, value: Value) -> list[Value] | None:
        """Return the values of this node's ranks, in order, on the node's first rank. None on the
        others.

        Every rank of the node must call this.

        Args:
            value: the value of this rank, which is pickled.

        Raises:
            DetcloudError: the processes cannot exchange values, or another rank of the node has
                exited.
        """
        return self._require_local_channel().gather(value)

    @accept_names(stuff="value")
    def allgather_local(self, value: Value) -> list[Value]:
        """Return the values of this node's ranks, in order, on each rank of the node.

        Every rank of the node must call this.

        Args:
            value: the value of this rank, which is pickled.

        Raises:
            DetcloudError: the processes cannot exchange values, or another rank of the node has
                exited.
        """
        channel = self._require_local_channel()
        return cast("list[Value]", channel.broadcast(channel.gather(value)))

    @accept_names(stuff="value")
    def broadcast_local(self, value: Value = None) -> Value:  # type: ignore[assignment]
        """Return the value of this node's first rank on all ranks of the node.

        Every rank of the node must call this.

        Args:
            value: the value, which is pickled. The argument of other ranks is ignored.

        Raises:
            DetcloudError: the processes cannot exchange values, or another rank of the node has
                exited.
        """
        return cast("Value", self._require_local_channel().broadcast(value))

    def background_context(self) -> DistributedContext:
        """Return a context of this process for use in another thread.

        The context exchanges values with the background contexts of the other processes, over
        separate connections. Use only the calls for all ranks: `gather`, `allgather`, `broadcast`.
        Without connections, these calls raise DetcloudError, unless the process is alone. `close`
        of this context closes the separate connections too.
        """
        twin = copy.copy(self)
        twin._channel = self._background
        twin._local_channel = twin.control = twin._background = None
        return twin

    # Names of Determined 0.12.

    def get_rank(self) -> int:
        """Return `rank`."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return `local_rank`."""
        return self.local_rank

    def get_size(self) -> int:
        """Return `size`."""
        return self.size

    def get_num_agents(self) -> int:
        """Return `cross_size`, the number of nodes."""
        return self.cross_size

    def close(self) -> None:
        """Close all connections. Other processes that wait for this process get a DetcloudError.

        Later exchanges of several processes raise DetcloudError. May be called again.
        """
        channels = (self._channel, self._local_channel, self.control, self._background)
        self._channel = self._local_channel = self.control = self._background = None
        for channel in channels:
            if channel is not None:
                channel.close()

    def _connect(self, chief_ip: str) -> None:
        """Open the channels between all ranks and, with several nodes, between the ranks of a node.

        Wait for all processes, at most 10 minutes. Raises DetcloudError if a process does not
        connect in time, two processes claim a rank, or the chief cannot listen.
        """
        key = channel_key(_allocation_name())
        address = _address(chief_ip, alone=self.cross_size == 1)
        channels = open_channels(self.rank, self.size, address, key, count=3)
        self._channel, self.control, self._background = channels
        if self.cross_size == 1:
            self._local_channel = self._channel
            return
        # The first process of each node chooses a socket file and sends the path to all ranks.
        path = local_address(f"detcloud-{os.getpid()}") if self.local_rank == 0 else ""
        paths = self.allgather((self.cross_rank, path))
        local = next(path for node, path in paths if node == self.cross_rank and path)
        (self._local_channel,) = open_channels(
            self.local_rank, self.local_size, local, key, count=1
        )

    def _require_channel(self) -> Channel:
        """Return the channel of all ranks. For a process alone, return a channel without
        connections.

        Raises DetcloudError if several processes have no channel.
        """
        if self._channel is not None:
            return self._channel
        if self.size > 1:
            raise DetcloudError(
                f"values are not exchanged over the {self.size} processes of this trial: start "
                "them with `python3 -m detcloud.launch.torch_distributed`, or give core.init "
                "`distributed=core.DistributedContext(...)` with chief_ip"
            )
        return _ALONE

    def _require_local_channel(self) -> Channel:
        """Return the channel of this node's ranks; for a rank alone, one without connections.

        Raises DetcloudError if several ranks of the node have no channel.
        """
        return self._local_channel or (self._require_channel() if self.local_size > 1 else _ALONE)


_ALONE = Channel()


def detect_distributed(environment: Mapping[str, str] = os.environ) -> DistributedContext | None:
    """Return the context of a launcher's worker.

    Recognise torch's launcher, DeepSpeed, and Horovod with several processes, in this order, by the
    variables of the environment. Return None without a launcher. Otherwise return after all
    processes have connected.

    Raises NoLauncher, a DetcloudError, if a variable that the launcher sets is missing. Raises
    DetcloudError if a process does not connect within 10 minutes, two processes claim a rank, or
    the chief cannot listen.
    """
    if "TORCHELASTIC_RUN_ID" in environment and "RANK" in environment:
        return DistributedContext.from_torch_distributed()
    if environment.get("USE_DEEPSPEED") and "RANK" in environment:
        return DistributedContext.from_deepspeed()
    if environment.get("HOROVOD_RANK") and int(environment.get("HOROVOD_SIZE") or 1) > 1:
        return DistributedContext.from_horovod()
    return None


def _numbers(variables: tuple[str, ...], launcher: str) -> list[int]:
    """Return the values of the environment variables as numbers, in the order of the variables.

    Raises NoLauncher, with the names of the variables, if any is missing or no number of digits
    only. `launcher` is the launcher that the error message recommends.
    """
    missing = [name for name in variables if not os.environ.get(name, "").isdigit()]
    if missing:
        raise NoLauncher(
            f"{', '.join(missing)} are not set: start this process with `python3 -m "
            f"detcloud.launch.{launcher}`"
        )
    return [int(os.environ[name]) for name in variables]


def _address(chief_ip: str, *, alone: bool) -> Address:
    """Return the meeting place of the processes: a socket if `alone` on a machine, else a port.

    The socket's name contains the user's id, MASTER_PORT and the launcher's number of restarts.
    The port is DETCLOUD_CHANNEL_PORT, by default CHANNEL_PORT.
    """
    port = os.environ.get("MASTER_PORT", "0")
    if alone:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return local_address(f"detcloud-{os.getuid()}-{port}-{attempt}")
    given = os.environ.get("DETCLOUD_CHANNEL_PORT")
    return chief_ip, int(given) if given else CHANNEL_PORT


def _allocation_name() -> str:
    """Return the name of the allocation, which the processes of a trial share; "" without a
    cluster.
    """
    folder = os.environ.get("DETCLOUD_TRIAL_DIR", "").rstrip("/")
    return folder.rpartition("/")[2]
