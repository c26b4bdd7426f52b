"""The combination of the cloud's list, the notices and the pool's state into observations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from control_plane.fleet.notices import InstanceNotice
from control_plane.fleet.records import InstanceRow
from provisioner.clouds.provider import CloudInstance
from provisioner.model import EndReason, ObservedInstance
from provisioner.pools import PoolSnapshot


def instances_with_notices(
    instances: Sequence[CloudInstance], notices: Iterable[InstanceNotice]
) -> list[CloudInstance]:
    """Return the instances in order, with the stored notices added.

    - `notice_ms`: the end from a notice about the instance, or else about its reservation, or else
      the cloud's own notice.
    - `boot_report`: the report from a notice about the instance, or else the cloud's own.
    - `rebalance`: True if a notice about the instance has neither an end nor a report, or if the
      cloud recommends it.

    Other fields stay. Of several ends or reports for an instance, the last counts. Notices about
    other instances are ignored.

    An end from a notice with a reason does not count: the instance shuts down without the cloud.
    `own_end_reasons` returns such reasons.
    """
    notices = list(notices)
    reports = {item.instance: item.boot_report for item in notices if item.boot_report}
    ends = {
        item.instance: item.deadline_ms
        for item in notices
        if item.deadline_ms is not None and not item.reason
    }
    advised = {
        item.instance for item in notices if item.deadline_ms is None and not item.boot_report
    }
    return [
        replace(
            instance,
            notice_ms=ends.get(instance.id, ends.get(instance.reservation, instance.notice_ms)),
            rebalance=instance.rebalance or instance.id in advised,
            boot_report=reports.get(instance.id, instance.boot_report),
        )
        for instance in instances
    ]


def own_end_reasons(notices: Iterable[InstanceNotice]) -> dict[str, str]:
    """Return the reasons for which instances shut themselves down, by instance id.

    The reasons are those in the notices; of several for an instance, the last counts. An instance
    without a reason is absent.
    """
    return {notice.instance: notice.reason for notice in notices if notice.reason}


def find_strangers(
    instances: Iterable[CloudInstance], rows: Mapping[str, InstanceRow]
) -> list[CloudInstance]:
    """Return the listed instances that have the id of a row and are other instances.

    In a cloud whose ids are names, an instance in another zone, or a later instance, may have the
    name. The zone and the number are compared if both the list and the row, by id, have them.
    """
    return [
        instance
        for instance in instances
        if (row := rows.get(instance.id)) is not None
        and (
            (row.zone and instance.zone and row.zone != instance.zone)
            or (row.uid and instance.uid and row.uid != instance.uid)
        )
    ]


def observed_instance(
    instance_id: str,
    listed: CloudInstance | None,
    snapshot: PoolSnapshot,
    own_end_reason: str = "",
) -> ObservedInstance:
    """Return the observation of an instance by the cloud's list and the pool's state.

    - `status`, `notice_ms`, `rebalance`, `boot_report`, `zone`, `uid`: those of `listed`. If the
      cloud does not list the instance (None), the status is None, and the other fields have the
      defaults.
    - `end`: `own_end_reason`, why the instance shut down without the cloud. If the text is "", the
      end of `listed`, or None.
    - `agent`: the pool's connected agent with this id, or None.
    - `has_enrolled`: whether the agent is connected or has a lease, live or not.
    - `is_joining`: whether the agent is not connected and the pool has yet to process its session.
    """
    own_end = EndReason(own_end_reason) if own_end_reason else None
    agent = snapshot.agents.get(instance_id)
    observed = ObservedInstance(
        None,
        agent,
        has_enrolled=agent is not None or instance_id in snapshot.leases,
        is_joining=agent is None and instance_id in snapshot.joining,
        end=own_end,
    )
    if listed is None:
        return observed
    return replace(
        observed,
        status=listed.status,
        notice_ms=listed.notice_ms,
        rebalance=listed.rebalance,
        end=own_end or listed.end,
        boot_report=listed.boot_report,
        zone=listed.zone,
        uid=listed.uid,
    )
