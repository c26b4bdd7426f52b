"""The conditions of the cluster's alarms."""

from control_plane.actors.cost import MICROS_PER_DOLLAR
from control_plane.alarms.conditions import (
    HOUR_MS,
    WaitingJob,
    add_hourly_cost,
    find_failed_boots,
    find_hourly_cost,
    find_late_messages,
    find_old_machines,
    find_queue_waits,
    hourly_cost_micros,
)
from control_plane.alarms.records import CostHistory, Finding
from control_plane.fleet.records import (
    ErrorKind,
    FleetRow,
    InstanceRow,
    InstanceState,
    Market,
    Offering,
    OfferingHealth,
)

HOUR, DAY = HOUR_MS, 24 * HOUR_MS
GPU = Offering("gpu", "g5.xlarge", "a", Market.SPOT, 1, price_per_hour=1.5)


def machine(name: str, launched_ms: int) -> InstanceRow:
    return InstanceRow(name, "gpus", GPU, InstanceState.RUNNING, launched_ms, "n-1")


def boots(errors: int, kind: ErrorKind = ErrorKind.BOOT) -> OfferingHealth:
    return OfferingHealth(errors=errors, kind=kind, message="no driver")


def test_failed_boots_name_the_worst_offering() -> None:
    health = {"small": boots(2), "large": boots(3), "full": boots(9, ErrorKind.CAPACITY)}
    [found] = find_failed_boots([FleetRow("gpus", health=health)], 2)
    text = "the last 3 machines of offering large failed to boot; no driver"
    assert found == Finding("failed-boots", "gpus", text, "3 failed boots in a row")


def test_a_single_failed_boot_is_no_alarm() -> None:
    assert not list(find_failed_boots([FleetRow("gpus", health={"small": boots(1)})], 2))


def test_long_wait_names_job_and_reason() -> None:
    waiting = [WaitingJob("gpus", 7, 0, "no capacity"), WaitingJob("cpus", 8, HOUR, "")]
    # The second job has waited for an hour and five minutes.
    found = list(find_queue_waits(waiting, 2 * HOUR, 2 * HOUR + 300_000))
    text = "job 7 has waited for slots for 2 h 5 min; no capacity"
    assert found == [Finding("queue-wait", "gpus", text, "2 h 5 min")]


def test_old_machines_of_a_pool_are_one_finding() -> None:
    rows = [machine("b", HOUR), machine("a", 0), machine("young", 14 * DAY)]
    found = list(find_old_machines({"gpus": rows, "empty": []}, 14 * DAY, 14 * DAY + 3 * HOUR))
    text = "machine a was launched 14 d 3 h ago; 1 more machines are too old"
    assert found == [Finding("machine-age", "gpus", text, "14 d 3 h")]


def test_late_messages_from_the_threshold_on() -> None:
    assert not list(find_late_messages(29_999, 30_000))
    [found] = find_late_messages(30_000, 30_000)
    assert (found.alarm, found.pool, found.value) == ("lag", "", "30 s")


def test_hourly_cost_is_the_sum_over_pools() -> None:
    instances = {"gpus": [machine("a", 0), machine("b", 0)], "cpus": [machine("c", 0)]}
    # 3 x 1.50 dollars
    assert hourly_cost_micros(instances) == 4_500_000


def history_of(peaks: dict[int, int], began_hour: int = 0) -> CostHistory:
    return CostHistory(
        began_hour, {hour: dollars * MICROS_PER_DOLLAR for hour, dollars in peaks.items()}
    )


def costs_too_much(history: CostHistory, dollars: int, hour: int, minimum: float = 10.0) -> bool:
    micros = dollars * MICROS_PER_DOLLAR
    return bool(list(find_hourly_cost(history, micros, 2.0, minimum, hour * HOUR_MS)))


def test_cost_is_compared_with_the_week_that_ended_a_day_ago() -> None:
    # In hour 300, the week is from hour 300 - 24 - 168 = 108 to hour 275.
    assert not costs_too_much(history_of({108: 20}), 40, 300)
    assert costs_too_much(history_of({108: 20}), 41, 300)
    assert costs_too_much(history_of({107: 50, 108: 20}), 41, 300)
    assert costs_too_much(history_of({275: 20, 276: 50}), 41, 300)
    assert not costs_too_much(history_of({275: 50, 276: 20}), 41, 300)


def test_small_costs_are_never_too_high() -> None:
    assert not costs_too_much(history_of({}), 10, 300)
    assert costs_too_much(history_of({}), 11, 300)


def test_new_clusters_are_not_compared() -> None:
    assert not costs_too_much(history_of({}, began_hour=276), 100, 300)
    assert costs_too_much(history_of({}, began_hour=275), 100, 300)


def test_history_keeps_the_highest_cost_of_each_hour() -> None:
    history = add_hourly_cost(None, 0, 5 * HOUR_MS)
    assert history == CostHistory(5)
    history = add_hourly_cost(history, 7, 5 * HOUR_MS)
    assert add_hourly_cost(history, 6, 5 * HOUR_MS + 60_000) is history
    history = add_hourly_cost(history, 9, 6 * HOUR_MS)
    assert history == CostHistory(5, {5: 7, 6: 9})
    # 192 hours after hour 6, only hour 5 is too old.
    assert add_hourly_cost(history, 1, 198 * HOUR_MS) == CostHistory(5, {6: 9, 198: 1})
