"""Messages of the format `email`, to a real mail server on this machine."""

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from pathlib import Path

import pytest

from control_plane.actors.event_routes import EventType
from control_plane.actors.events import Event, event_row
from control_plane.config.section import Secret
from control_plane.config.webhooks import Smtp
from control_plane.webhooks.formats.message import Announcement
from control_plane.webhooks.formats.registry import FORMATS
from control_plane.webhooks.mail import MailSender, parse_recipients
from control_plane.webhooks.sender import Outcome, Request
from tests.emulators.company_authority import create_authority

TIME_MS = 1_800_000_000_000


@dataclass
class MailServer:
    """A mail server that records commands and messages."""

    port: int = 0
    commands: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


@contextmanager
def run_mail_server(
    context: ssl.SSLContext | None = None, answers: dict[str, str] | None = None
) -> Iterator[MailServer]:
    """Run a mail server. `answers` replaces the answers to commands, by command."""
    server = MailServer()
    given = {"DATA": "354 go on", **(answers or {})}

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with ExitStack() as stack:
                self.answer(stack)

        def answer(self, stack: ExitStack) -> None:
            reader = stack.enter_context(self.request.makefile("rb"))
            writer = stack.enter_context(self.request.makefile("wb", 0))
            writer.write(b"220 mail\r\n")
            while line := reader.readline():
                command = line.decode().strip()
                server.commands.append(command)
                name = command.partition(" ")[0].upper()
                if name == "EHLO":
                    writer.write(b"250-mail\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n")
                    continue
                if name == "STARTTLS" and context is not None:
                    writer.write(b"220 go on\r\n")
                    secured = context.wrap_socket(self.request, server_side=True)
                    stack.enter_context(secured)
                    reader = stack.enter_context(secured.makefile("rb"))
                    writer = stack.enter_context(secured.makefile("wb", 0))
                    continue
                default = {"QUIT": "221 bye", "AUTH": "235 ok"}.get(name, "250 ok")
                writer.write(f"{given.get(name, default)}\r\n".encode())
                if name == "DATA" and given["DATA"].startswith("354"):
                    lines = []
                    while (part := reader.readline()) not in (b".\r\n", b""):
                        lines.append(part)
                    server.messages.append(b"".join(lines))
                    writer.write(b"250 stored\r\n")
                if name == "QUIT":
                    return

    class Listener(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Listener(("127.0.0.1", 0), Handler) as listener:
        server.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


class NoHttp:
    """A sender that records the URLs of requests."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def send(self, request: Request) -> Outcome:
        self.urls.append(request.url)
        return Outcome(True, 200)


def smtp(server: MailServer, **fields: object) -> Smtp:
    values = {"host": "127.0.0.1", "port": server.port, "sender": "c@example.com", **fields}
    return Smtp.model_validate({"starttls": False, **values})


def request(url: str = "mailto:ann@example.com,bob@example.com") -> Request:
    event = Event(EventType.TEST, "experiment#7", 1, "it ended\r\nBcc: x@example.com", "text ü")
    row = event_row(event, (1,), TIME_MS)
    return FORMATS["email"](Announcement(row, url, "vision", "https://c.example"))


def test_message_has_sender_recipients_and_text() -> None:
    with run_mail_server() as server:
        sender = MailSender(NoHttp(), lambda: smtp(server))
        assert sender.send(request()) == Outcome(True)
    (raw,) = server.messages
    message = message_from_bytes(raw, policy=policy.SMTP)
    assert (message["From"], message["To"]) == ("c@example.com", "ann@example.com, bob@example.com")
    # A title cannot add a header.
    assert message["Subject"] == "[vision] It ended  Bcc: x@example.com"
    assert message["Bcc"] is None
    body = message.get_body()
    assert body is not None
    assert body.get_content().splitlines() == [
        *("It ended", "Bcc: x@example.com", "", "text ü", "", "Cluster: vision", ""),
        "https://c.example/ui/#/experiments/7",
    ]
    recipients = [command for command in server.commands if command.startswith("rcpt")]
    assert recipients == ["rcpt TO:<ann@example.com>", "rcpt TO:<bob@example.com>"]


def test_repeated_message_has_the_same_id() -> None:
    first, again = (message_from_bytes(request().body)["Message-ID"] for _ in range(2))
    assert first == again


def test_login_follows_the_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = create_authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("127.0.0.1"))
    login = {"username": "u", "password": Secret("canary"), "starttls": True}
    with run_mail_server(context) as server:
        sender = MailSender(NoHttp(), lambda: smtp(server, **login))
        assert sender.send(request()) == Outcome(True)
    names = [command.partition(" ")[0].upper() for command in server.commands]
    assert names.index("STARTTLS") < names.index("AUTH") < names.index("DATA")


@pytest.mark.parametrize("command", ["MAIL", "DATA", "AUTH"])
def test_refusal_of_the_mail_server_shows_no_secret(command: str) -> None:
    with run_mail_server(answers={command: "535 canary"}) as server:
        login = {"username": "u", "password": Secret("canary")}
        sender = MailSender(NoHttp(), lambda: smtp(server, **login))
        outcome = sender.send(request())
    assert outcome.error == "the mail server answered with code 535"


def test_mail_server_without_encryption_is_refused() -> None:
    with run_mail_server(answers={"STARTTLS": "502 no"}) as server:
        outcome = MailSender(NoHttp(), lambda: smtp(server, starttls=True)).send(request())
    assert not outcome.is_delivered
    assert server.messages == []


def test_missing_mail_server_is_a_failure() -> None:
    outcome = MailSender(NoHttp(), lambda: None).send(request())
    assert outcome.error == "the cluster configuration has no webhooks.smtp"


def test_other_requests_are_sent_over_http() -> None:
    http = NoHttp()
    assert MailSender(http, lambda: None).send(Request("https://example.com/", b"")).status == 200
    assert http.urls == ["https://example.com/"]


@pytest.mark.parametrize(
    "url",
    [
        "ann@example.com",
        "mailto:",
        "mailto:ann",
        "mailto:ann@example.com\r\nBcc: x@example.com",
        "mailto:ann@example.com?bcc=x@example.com",
        "mailto:" + ",".join(["ann@example.com"] * 11),
    ],
)
def test_wrong_recipients_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be like mailto"):
        parse_recipients(url)
