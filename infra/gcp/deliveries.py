"""The time that a delivery of an event may take. Eventarc makes a subscription of Pub/Sub for each
trigger, which sends an event again 10 s after it was sent, while the function may be at it; no
setting of the trigger changes that, so it is changed once the stack is made.
"""

from typing import Final

from infra.gcp.events import TRIGGERS
from infra.gcp.google_api import GoogleApi, GoogleError
from infra.gcp.names import Names
from infra.stack_program import Progress

# The most that Pub/Sub allows, and more than any function takes that an event calls.
DELIVERY_SECONDS: Final = 600
EVENTARC: Final = "https://eventarc.googleapis.com/v1"
PUBSUB: Final = "https://pubsub.googleapis.com/v1"


def extend_deliveries(names: Names, api: GoogleApi, progress: Progress) -> None:
    """Extend the deadline of deliveries to DELIVERY_SECONDS.

    If Google refuses, events may arrive twice, which the cluster tolerates. The refusal is printed,
    and the next deployment tries again.
    """
    for trigger in TRIGGERS:
        part = names.part(trigger)
        place = f"projects/{names.project}/locations/{names.region}/triggers/{part}"
        try:
            found = api.call("GET", f"{EVENTARC}/{place}")
            name = str(found.get("transport", {}).get("pubsub", {}).get("subscription", ""))
            if not name:
                raise GoogleError(0, "it names no subscription")
            _extend(name, api, progress)
        except GoogleError as error:
            progress(
                f"warning: events of the trigger {part} are delivered again after 10 s, while the "
                f"function is at them: {error}"
            )


def _extend(subscription: str, api: GoogleApi, progress: Progress) -> None:
    url = f"{PUBSUB}/{subscription}"
    if api.call("GET", url).get("ackDeadlineSeconds") == DELIVERY_SECONDS:
        return
    changed = {"name": subscription, "ackDeadlineSeconds": DELIVERY_SECONDS}
    api.call("PATCH", url, {"subscription": changed, "updateMask": "ackDeadlineSeconds"})
    progress(f"deliveries of {subscription.rpartition('/')[2]} may take {DELIVERY_SECONDS} s")
