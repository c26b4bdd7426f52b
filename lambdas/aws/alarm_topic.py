"""Notifications of alarms through a topic of Amazon SNS."""

from typing import Any

import botocore.exceptions as sdk

from control_plane.alarms.notifications import AlarmNotification, NotificationFailed


class SnsNotifier:
    """A notifier that publishes to a topic.

    Args:
        client: a client of SNS.
        topic: the ARN of the topic.
    """

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic

    def notify(self, notification: AlarmNotification) -> None:
        """Publish a notification, and return after SNS has stored the notification.

        The attributes `alarm`, `change` and `pool` let subscriptions filter notifications. Raises
        NotificationFailed if SNS refuses the request or does not answer.
        """
        values = {
            "alarm": notification.alarm,
            "change": notification.change,
            "pool": notification.pool,
        }
        try:
            self._client.publish(
                TopicArn=self._topic,
                Subject=notification.subject,
                Message=notification.body,
                MessageAttributes={
                    # SNS refuses empty values.
                    name: {"DataType": "String", "StringValue": value}
                    for name, value in values.items()
                    if value
                },
            )
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            text = (
                f"{self._topic} did not accept the notification: {error}; the role of the tick "
                "needs sns:Publish on the topic"
            )
            raise NotificationFailed(text) from error
