"""Mails of webhooks through SES, against moto, and the permissions of the stack."""

from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.actors.event_routes import EventType
from control_plane.actors.events import Event, event_row
from control_plane.config.webhooks import Smtp
from control_plane.webhooks.formats.message import Announcement
from control_plane.webhooks.formats.registry import FORMATS
from control_plane.webhooks.mail import MailSender
from control_plane.webhooks.sender import HttpSender, Outcome
from tests.conftest import require
from tests.unit.webhooks.receiver import HERE

require("moto")
boto3 = pytest.importorskip("boto3")

import moto  # noqa: E402
from moto.core.models import DEFAULT_ACCOUNT_ID  # noqa: E402
from moto.ses.models import ses_backends  # noqa: E402

from lambdas.aws.mail_service import SesMailService  # noqa: E402

SENDER = "detcloud@example.com"


@pytest.fixture
def ses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        yield boto3.client("sesv2", "us-east-1")


def send(service: SesMailService, smtp: Smtp | None = None, text: str = "ü") -> Outcome:
    event = Event(EventType.CUSTOM, "experiment#7", 1, "the loss is infinite", text)
    url = "mailto:ann@example.com,bob@example.com"
    request = FORMATS["email"](Announcement(event_row(event, (1,), 1), url, "vision"))
    return MailSender(HttpSender(lambda: HERE), lambda: smtp, service).send(request)


def test_verified_identity_sends_the_mail(ses: Any) -> None:
    ses.create_email_identity(EmailIdentity="example.com")
    assert send(SesMailService(ses, SENDER)) == Outcome(True, 200)
    (sent,) = ses_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].sent_messages
    assert sent.source == SENDER
    assert sent.destinations["ToAddresses"] == ["ann@example.com", "bob@example.com"]
    assert sent.subject == "[vision] The loss is infinite"
    assert sent.body == "The loss is infinite\n\nü\n\nCluster: vision\n"


def test_refusal_names_the_remedy_without_addresses(ses: Any) -> None:
    outcome = send(SesMailService(ses, SENDER))
    assert (outcome.is_delivered, outcome.status) == (False, 400)
    assert "SES refused the mail: MessageRejected" in outcome.error
    assert "verifies the identity of mailSender" in outcome.error
    assert "@" not in outcome.error


def test_unreachable_service_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambdas.aws.clients import lazy_client

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SESV2", "http://127.0.0.1:9")
    outcome = send(SesMailService(lazy_client("sesv2", 1.0), SENDER))
    assert outcome == Outcome(False, error="SES was not reached: EndpointConnectionError")


def test_mail_server_of_the_configuration_comes_first(ses: Any) -> None:
    smtp = Smtp(host="127.0.0.1", port=9, sender="c@example.com", starttls=False)
    assert "the mail was not sent" in send(SesMailService(ses, SENDER), smtp).error


def test_adapters_have_a_service_with_a_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    from lambdas.aws.adapters import AwsAdapters

    monkeypatch.delenv("DETCLOUD_MAIL_SENDER", raising=False)
    assert AwsAdapters().mail_service is None
    assert not AwsAdapters().has_mail_service
    monkeypatch.setenv("DETCLOUD_MAIL_SENDER", SENDER)
    assert isinstance(AwsAdapters().mail_service, SesMailService)
    assert AwsAdapters().has_mail_service
