"""Sending messages of webhooks with the format `email`, over SMTP or by a mail service."""

import re
import smtplib
import ssl
from collections.abc import Callable, Sequence
from email import message_from_bytes, policy
from typing import Protocol

from control_plane.config.webhooks import Smtp
from control_plane.webhooks.sender import Outcome, Request, Sender

SCHEME = "mailto:"
RECIPIENTS_MAX = 10
STEP_SECONDS_MAX = 3.0
"""The time limit of each step of an exchange with the mail server, in seconds. All steps together
take less time than a claim of the deliverer.
"""
_ADDRESS = re.compile(r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")


def parse_recipients(url: str) -> tuple[str, ...]:
    """Return the recipients of a URL `mailto:ADDRESS,ADDRESS`.

    Raises:
        ValueError: the URL has another form, or more than RECIPIENTS_MAX recipients.
    """
    addresses = tuple(url.removeprefix(SCHEME).split(","))
    is_valid = all(_ADDRESS.fullmatch(address) for address in addresses)
    if not (url.startswith(SCHEME) and is_valid and len(addresses) <= RECIPIENTS_MAX):
        raise ValueError(
            f"must be like mailto:ann@example.com, with at most {RECIPIENTS_MAX} addresses"
        )
    return addresses


class MailService(Protocol):
    """A service of the host's cloud that sends mails."""

    def send_mail(self, recipients: Sequence[str], subject: str, text: str) -> Outcome:
        """Send a mail in plain text, and return the outcome. No error is raised.

        Return within half of the deliverer's CLAIM_MS.
        """


class MailSender:
    """A sender that passes requests to `mailto:` URLs to a mail server, and others to `http`.

    Without a mail server, the mail service sends the mails.

    Args:
        http: the sender of other requests.
        read_smtp: returns the settings of the mail server, or None. Raises TableError.
        service: the mail service of the host, or None.
    """

    def __init__(
        self,
        http: Sender,
        read_smtp: Callable[[], Smtp | None],
        service: MailService | None = None,
    ) -> None:
        self._http = http
        self._read_smtp = read_smtp
        self._service = service

    def send(self, request: Request) -> Outcome:
        """Send a request, and return the outcome. Raises TableError for unreadable settings."""
        if not request.url.startswith(SCHEME):
            return self._http.send(request)
        smtp = self._read_smtp()
        if smtp is None and self._service is not None:
            return _send_by_service(self._service, request)
        if smtp is None:
            return Outcome(False, error="the cluster configuration has no webhooks.smtp")
        try:
            _send_mail(smtp, parse_recipients(request.url), request.body)
            return Outcome(True)
        except smtplib.SMTPResponseException as error:
            text = f"the mail server answered with code {error.smtp_code}"
            return Outcome(False, error=text)
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return Outcome(False, error=f"the mail was not sent: {type(error).__name__}")


def _send_by_service(service: MailService, request: Request) -> Outcome:
    """Send the message of a request by a mail service, and return the outcome."""
    message = message_from_bytes(request.body, policy=policy.default)
    content = str(message.get_content()).replace("\r\n", "\n")
    subject = str(message["Subject"] or "")
    return service.send_mail(parse_recipients(request.url), subject, content)


def _send_mail(smtp: Smtp, recipients: tuple[str, ...], body: bytes) -> None:
    """Send a message without a sender to recipients.

    Raises OSError and SMTPException. A message that only some recipients may get counts as sent.
    """
    message = message_from_bytes(body, policy=policy.SMTP)
    message["From"] = smtp.sender
    message["To"] = ", ".join(recipients)
    with smtplib.SMTP(smtp.host, smtp.port, timeout=STEP_SECONDS_MAX) as connection:
        if smtp.starttls:
            connection.starttls(context=ssl.create_default_context())
        if smtp.username is not None and smtp.password is not None:
            connection.login(smtp.username, smtp.password.reveal())
        connection.send_message(message, smtp.sender, list(recipients))
