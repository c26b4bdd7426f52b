"""The webhook of a simulated cluster, and the checks of its deliveries."""

from collections import defaultdict

from control_plane.access.principals import Principal, Role
from control_plane.actors import addresses
from control_plane.actors.event_routes import EventType, Route, Trigger
from control_plane.rows.webhook_rows import DELIVERY, EVENT
from control_plane.state.table import StateTable
from control_plane.usecases import webhooks
from control_plane.webhooks.records import decode_delivery
from simulator.checks.state_checker import InvariantBroken, StateChecker
from simulator.hosts.receiver import SimulatedReceiver

TRIGGERS = (
    EventType.EXPERIMENT_STATE_CHANGE,
    EventType.TRIAL_STATE_CHANGE,
    EventType.BEST_VALIDATION,
    EventType.LOW_USE,
)


def create_webhook(table: StateTable, now_ms: int) -> None:
    """Create a webhook of an admin for the events of all experiments."""
    triggers = tuple(Trigger(kind.value) for kind in TRIGGERS)
    request = webhooks.WebhookRequest(
        "all", "https://receiver.example.com/", "json", Route(0, "all", triggers)
    )
    webhooks.create_webhook(
        table, request, Principal("admin", Role.ADMIN), now_ms, lambda record: ()
    )


def has_waiting_events(checker: StateChecker) -> bool:
    """Return whether any event has not been delivered yet."""
    return any(key.partition.startswith(EVENT.partition) for key in checker.rows)


def check_deliveries(checker: StateChecker, receiver: SimulatedReceiver) -> None:
    """Check that each event of each experiment has arrived in order, or is listed as failed.

    Raises InvariantBroken.
    """
    if receiver.faults_found:
        raise InvariantBroken(f"events arrived out of order: {receiver.faults_found[:3]}")
    failed = _failed_deliveries(checker)
    for state in checker.actor_states("experiment"):
        subject = addresses.experiment(state.experiment_id)
        known = receiver.received[subject].keys() | failed[subject]
        missing = set(range(1, state.events_raised + 1)) - known
        if missing:
            raise InvariantBroken(f"events {sorted(missing)[:5]} of {subject} are lost")


def _failed_deliveries(checker: StateChecker) -> dict[str, set[int]]:
    """Return the numbers of the events of each subject whose delivery has failed for good."""
    failed: dict[str, set[int]] = defaultdict(set)
    for key, put in checker.rows.items():
        if key.partition.startswith(DELIVERY.partition):
            record = decode_delivery(put.body)
            if record.state == "failed":
                failed[record.event["subject"]].add(record.event["number"])
    return failed
