"""The sender of mails on AWS: settings, permissions and variables of functions."""

import json
from pathlib import Path

import pytest

from infra.aws.mail_settings import mail_statements
from infra.aws.names import FUNCTIONS, Names
from infra.aws.policy_statements import make_document
from infra.aws.settings import parse_settings
from infra.stack_program import SettingsInvalid
from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import SPEECH, Graph, graph
from tests.unit.infra.test_infra_settings import LEAST

NAMES = Names("vision", "111111111111", "us-east-1")
SENDER = "detcloud@ml.example.com"
DOMAIN = "arn:aws:ses:us-east-1:111111111111:identity/ml.example.com"
FROM = {"ses:FromAddress": SENDER}


def problems(**given: str) -> list[str]:
    with pytest.raises(SettingsInvalid) as refused:
        parse_settings("vision", {**LEAST, **given})
    return list(refused.value.problems)


def test_statement_allows_one_sender_of_one_identity() -> None:
    document = make_document(*mail_statements(NAMES, SENDER, ""))
    assert allows(document, "ses:SendEmail", DOMAIN, FROM)
    assert not allows(document, "ses:SendEmail", DOMAIN, {"ses:FromAddress": "ceo@ml.example.com"})
    assert not allows(document, "ses:SendEmail", DOMAIN.replace("ml.", ""), FROM)
    assert not allows(document, "ses:SendRawEmail", DOMAIN, FROM)
    assert mail_statements(NAMES, "", "") == []
    own = make_document(*mail_statements(NAMES, SENDER, SENDER))
    assert allows(own, "ses:SendEmail", DOMAIN.replace("ml.", "detcloud@ml."), FROM)


@pytest.mark.parametrize("identity", ["", SENDER, "ml.example.com", "example.com"])
def test_identity_is_the_address_or_a_domain_above(identity: str) -> None:
    given = {"mailIdentity": identity} if identity else {}
    settings = parse_settings("vision", {**LEAST, "mailSender": SENDER, **given})
    assert (settings.mail_sender, settings.mail_identity) == (SENDER, identity)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mailIdentity": "example.com"}, "detcloud:mailSender is missing"),
        ({"mailSender": SENDER, "mailIdentity": "other.example"}, "detcloud:mailIdentity is other"),
        ({"mailSender": SENDER, "mailIdentity": "l.example.com"}, "detcloud:mailIdentity is l.ex"),
        ({"mailSender": "example.com"}, 'detcloud:mailSender is "example.com": expected an e-mail'),
        ({"mailSender": "a@b.example\n"}, "detcloud:mailSender is"),
        ({"mailSender": SENDER, "mailIdentity": "*"}, 'detcloud:mailIdentity is "*": expected a'),
    ],
)
def test_wrong_sender_is_refused(given: dict[str, str], expected: str) -> None:
    [problem] = problems(**given)
    assert problem.startswith(expected)


@pytest.fixture(scope="module")
def mailing(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder: Path = tmp_path_factory.mktemp("mailing")
    return graph("speech", {**SPEECH, "detcloud:mailSender": SENDER}, folder)


def test_only_deliverers_get_the_permission(mailing: Graph) -> None:
    for name, policy in mailing.inputs_of("RolePolicy").items():
        document = json.loads(policy["policy"])
        assert allows(document, "ses:SendEmail", DOMAIN, FROM) == (name == "tick"), name


def test_api_and_deliverers_know_the_sender(mailing: Graph) -> None:
    functions = mailing.inputs_of("Function")
    with_sender = {
        name
        for name in FUNCTIONS
        if functions[name]["environment"]["variables"].get("DETCLOUD_MAIL_SENDER") == SENDER
    }
    assert with_sender == {"api", "tick", "wake"}
