"""Extends the time that a delivery of an event may take.

Eventarc creates a Pub/Sub subscription for each trigger. The subscription delivers an event again
after 10 s, even if the function still processes the event. No setting of the trigger changes the
deadline, so it is changed after each deployment.
"""

from typing import Final

from infra.gcp.events import TRIGGERS
from infra.gcp.google_api import GoogleApi, GoogleError
from infra.gcp.names import Names
from infra.stack_program import Progress

# Pub/Sub's maximum, longer than the timeout of any function that events call.
DELIVERY_SECONDS: Final = 600
EVENTARC: Final = "https://eventarc.googleapis.com/v1"
PUBSUB: Final = "https://pubsub.googleapis.com/v1"


def extend_deliveries(names: Names, api: GoogleApi, progress: Progress) -> None:
    """Set the delivery deadline of all triggers' subscriptions to DELIVERY_SECONDS.

    Report each changed subscription; skip subscriptions with this deadline. If Google refuses,
    report a warning, raise nothing, and continue with the next trigger. Events may then arrive
    twice, which the cluster tolerates, and the next deployment tries again.
    """
    for trigger in TRIGGERS:
        part = names.part(trigger)
        place = f"projects/{names.project}/locations/{names.region}/triggers/{part}"
        try:
            found = api.call("GET", f"{EVENTARC}/{place}")
            name = str(found.get("transport", {}).get("pubsub", {}).get("subscription", ""))
            if not name:
                raise GoogleError(0, "the trigger has no subscription")
            _extend(name, api, progress)
        except GoogleError as error:
            progress(
                f"warning: events of the trigger {part} are delivered again after 10 s, while the "
                f"function still handles the events; deploy again: {error}"
            )


def _extend(subscription: str, api: GoogleApi, progress: Progress) -> None:
    """Set a subscription's deadline to DELIVERY_SECONDS, and report the change.

    Change and report nothing if the deadline is right. Raise GoogleError.
    """
    url = f"{PUBSUB}/{subscription}"
    if api.call("GET", url).get("ackDeadlineSeconds") == DELIVERY_SECONDS:
        return
    changed = {"name": subscription, "ackDeadlineSeconds": DELIVERY_SECONDS}
    api.call("PATCH", url, {"subscription": changed, "updateMask": "ackDeadlineSeconds"})
    progress(f"deliveries of {subscription.rpartition('/')[2]} may take {DELIVERY_SECONDS} s")
