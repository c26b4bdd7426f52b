"""A cloud that crashes the caller at a chosen call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from control_plane.fleet.records import IntentRow, Offering
from control_plane.scheduling.agent_needs import AgentDevice
from provisioner.clouds.provider import CloudInstance, CloudProvider
from simulator.faults.table_faults import Crash, CrashMoment

T = TypeVar("T")


@dataclass
class CrashingCloud:
    """Passes calls on to the cloud, and raises Crash at a chosen call."""

    cloud: CloudProvider
    crash_at: int = 0
    """The number of the call, counted from 1. With 0, no call crashes."""
    when: CrashMoment = "before"
    calls: int = 0
    on_terminate: Callable[[Sequence[str]], None] = lambda ids: None
    """Called with the ids before a termination."""

    def offerings(self) -> tuple[Offering, ...]:
        return self.cloud.offerings()

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        return self.cloud.devices_of(instance_type)

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        return self._call_or_crash(lambda: self.cloud.launch(request))

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        return self._call_or_crash(lambda: self.cloud.list_instances(cluster, pool))

    def boot_log(self, instance: str) -> str:
        return self._call_or_crash(lambda: self.cloud.boot_log(instance))

    def terminate(self, ids: Sequence[str]) -> None:
        self.on_terminate(ids)
        self._call_or_crash(lambda: self.cloud.terminate(ids))

    def _call_or_crash(self, call: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls == self.crash_at and self.when == "before":
            raise Crash(f"before call {self.calls}")
        answer = call()
        if self.calls == self.crash_at:
            raise Crash(f"after call {self.calls}")
        return answer
