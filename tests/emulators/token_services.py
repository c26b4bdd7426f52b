"""The token services of both clouds for federated identities. No emulator has these services.

The services check requests against the configured trust and record issued tokens.
"""

import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.emulators.http_server import AnsweringHandler, serve_requests

_ROLE_ANSWER = """<AssumeRoleWithWebIdentityResponse
xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>ASIATESTS{number:011d}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>
<SessionToken>session</SessionToken><Expiration>{end}</Expiration></Credentials>
<AssumedRoleUser>
<Arn>arn:aws:sts::123456789012:assumed-role/other/{name}</Arn>
<AssumedRoleId>A:{name}</AssumedRoleId></AssumedRoleUser></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
# The token of a service account with a key.
_OWN = "own"
_REFUSAL = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>
<Type>Sender</Type><Code>AccessDenied</Code><Message>not trusted</Message></Error>
</ErrorResponse>"""


@dataclass
class TokenServices:
    """The token services of Google and AWS.

    `lifetime_seconds`: lifetime of the next issued tokens. `given`: issued tokens.

    Google trusts the AWS caller whose ARN begins with `trusted`, at `provider`, to act as
    `account`. `find_caller` asks AWS for the signer of a request by the headers.

    AWS opens `role` for known `tokens`, or for pairs of role and token that `trusts` accepts.
    `pass_on` answers all other calls with status and text.

    A service account with a key gets a token of its own for an assertion that `knows_assertion`
    accepts. With this token it may act as `account`.
    """

    provider: str = ""
    trusted: str = ""
    account: str = ""
    role: str = ""
    tokens: set[str] = field(default_factory=set)
    lifetime_seconds: int = 3600
    url: str = ""
    given: list[str] = field(default_factory=list)
    find_caller: Callable[[Mapping[str, str]], str] = lambda headers: ""
    trusts: Callable[[str, str], bool] | None = None
    knows_assertion: Callable[[str], bool] = lambda assertion: False
    pass_on: Callable[[Mapping[str, str], bytes], tuple[int, str]] = lambda headers, content: (
        403,
        _REFUSAL,
    )

    def holds(self, authorization: str) -> bool:
        """Whether a request has a token that was given for the account."""
        token = authorization.removeprefix("Bearer account-")
        return token.isdecimal() and 0 < int(token) <= self.given.count("account")

    def has_session(self, authorization: str) -> bool:
        """Whether a request is signed with keys that were given for the role."""
        number = re.search("Credential=ASIATESTS([0-9]{11})/", authorization)
        return number is not None and 0 < int(number[1]) <= self.given.count("role")

    def answer(self, path: str, headers: Mapping[str, str], content: bytes) -> tuple[int, str]:
        """Return the status and the content of the answer to a POST. `headers` have lowercase
        names.
        """
        if path == f"/v1/projects/-/serviceAccounts/{self.account}:generateAccessToken":
            return self._impersonate(headers.get("authorization", ""))
        form = dict(urllib.parse.parse_qsl(content.decode()))
        if path == "/v1/token":
            return self._exchange(form)
        if path == "/token":
            return self._issue_own(form["assertion"])
        if path == "/" and form.get("Action") == "AssumeRoleWithWebIdentity":
            return self._assume(form)
        return self.pass_on(headers, content) if path == "/" else (404, "{}")

    def _exchange(self, form: Mapping[str, str]) -> tuple[int, str]:
        signed = json.loads(urllib.parse.unquote(form["subject_token"]))
        headers = {header["key"].lower(): header["value"] for header in signed["headers"]}
        is_trusted = (
            form["audience"] == self.provider
            and headers["x-goog-cloud-target-resource"] == self.provider
            and "Action=GetCallerIdentity" in signed["url"]
            and bool(self.trusted)
            and self.find_caller(headers).startswith(self.trusted)
        )
        if not is_trusted:
            return 400, json.dumps({"error": "invalid_grant", "error_description": "not trusted"})
        self.given.append("exchange")
        token = {"access_token": "federated", "token_type": "Bearer", "expires_in": 3600}
        issued = "urn:ietf:params:oauth:token-type:access_token"
        return 200, json.dumps({**token, "issued_token_type": issued})

    def _issue_own(self, assertion: str) -> tuple[int, str]:
        if not self.knows_assertion(assertion):
            return 400, json.dumps({"error": "invalid_grant"})
        self.given.append("own")
        token = {"access_token": _OWN, "token_type": "Bearer", "expires_in": 3600}
        return 200, json.dumps(token)

    def _impersonate(self, authorization: str) -> tuple[int, str]:
        if authorization not in ("Bearer federated", f"Bearer {_OWN}"):
            return 403, json.dumps({"error": {"code": 403, "message": "not trusted"}})
        self.given.append("account")
        number = self.given.count("account")
        return 200, json.dumps({"accessToken": f"account-{number}", "expireTime": self._end()})

    def _assume(self, form: Mapping[str, str]) -> tuple[int, str]:
        if not (self.trusts or self._knows)(form["RoleArn"], form["WebIdentityToken"]):
            return 403, _REFUSAL
        self.given.append("role")
        number, name = self.given.count("role"), form["RoleSessionName"]
        return 200, _ROLE_ANSWER.format(number=number, end=self._end(), name=name)

    def _knows(self, role: str, token: str) -> bool:
        return role == self.role and token in self.tokens

    def _end(self) -> str:
        end = datetime.now(UTC) + timedelta(seconds=self.lifetime_seconds)
        return end.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def token_services() -> Iterator[TokenServices]:
    """Serve both token services at a common address."""
    services = TokenServices()

    class Handler(AnsweringHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, content = services.answer(self.path, headers, self.read_body())
            self.answer(status, content.encode(), {})

    with serve_requests(Handler) as address:
        services.url = f"http://{address}"
        yield services
