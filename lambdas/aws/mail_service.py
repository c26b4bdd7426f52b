"""Mails of webhooks through Amazon SES."""

from collections.abc import Sequence
from typing import Any

import botocore.exceptions as sdk

from control_plane.webhooks.sender import Outcome


class SesMailService:
    """A mail service that sends by SES, from an address of a verified identity.

    Args:
        client: a client of SES, version 2.
        sender: the address from which mails are sent.
    """

    def __init__(self, client: Any, sender: str) -> None:
        self._client = client
        self._sender = sender

    def send_mail(self, recipients: Sequence[str], subject: str, text: str) -> Outcome:
        """Send a mail in plain text, and return the outcome. No error is raised.

        The mail has simple content: raw content would need the permission ses:SendRawEmail.
        """
        try:
            answer = self._client.send_email(
                FromEmailAddress=self._sender,
                Destination={"ToAddresses": list(recipients)},
                Content={
                    "Simple": {
                        "Subject": {"Data": subject, "Charset": "UTF-8"},
                        "Body": {"Text": {"Data": text, "Charset": "UTF-8"}},
                    }
                },
            )
            return Outcome(True, answer["ResponseMetadata"]["HTTPStatusCode"])
        except sdk.ClientError as error:
            # The message of an error may have addresses of recipients.
            answer = error.response
            code = answer.get("Error", {}).get("Code", "without a code")
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return Outcome(False, status, f"SES refused the mail: {code}{_ADVICE.get(code, '')}")
        except sdk.BotoCoreError as error:
            return Outcome(False, error=f"SES was not reached: {type(error).__name__}")


_ADVICE = {
    "MessageRejected": "; an admin verifies the identity of mailSender in SES, and also recipients"
    " while the account is in the sandbox of SES",
    "AccessDeniedException": "; an admin checks mailSender and mailIdentity of the stack",
}
"""The advice for error codes of SES."""
