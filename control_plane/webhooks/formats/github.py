"""The format `github`: the status of a commit, by GitHub's REST API.

The URL of the webhook is that of a repository in the API, as in
`https://api.github.com/repos/OWNER/REPOSITORY`. The commit is the experiment's
`integrations.github.commit`. The test event only reads the repository.
"""

import re
from urllib.parse import urlsplit

from control_plane.actors.event_routes import EventType
from control_plane.webhooks.formats.message import Announcement, NotAnnounced, json_request
from control_plane.webhooks.sender import Request

API_VERSION = "2022-11-28"
DESCRIPTION_CHARACTERS_MAX = 140
"""GitHub's limit for descriptions of statuses."""
CONTEXT_CHARACTERS_MAX = 255
_STATES = {
    "ACTIVE": "pending",
    "PAUSED": "pending",
    "COMPLETED": "success",
    "ERROR": "failure",
    "CANCELED": "error",
}
"""The states of commits by the state of the experiment."""
_PATH = re.compile(r"(?:/[A-Za-z0-9._-]+)*/repos/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)", re.ASCII)


def parse_repository(url: str) -> str:
    """Return the repository of a URL of the API, as `OWNER/REPOSITORY`.

    Raises:
        ValueError: the URL has another form.
    """
    parts = urlsplit(url)
    found = _PATH.fullmatch(parts.path.removesuffix("/"))
    names = {".", ".."} if found is None else {found["owner"], found["name"]}
    if found is None or names & {".", ".."} or parts.query or parts.fragment:
        raise ValueError("must be like https://api.github.com/repos/OWNER/REPOSITORY")
    return f"{found['owner']}/{found['name']}"


def build_request(announcement: Announcement) -> Request:
    """Return the request that sets the status of the experiment's commit.

    Experiments with the same name and commit share a status. For the test event, return a request
    that reads the repository, which needs the token too.

    Raises:
        NotAnnounced: the experiment has no commit, or a commit of another repository, or the event
            is no state of an experiment.
    """
    event = announcement.event
    url = announcement.url.removesuffix("/")
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {announcement.token}",
        "X-GitHub-Api-Version": API_VERSION,
    }
    if event.type == EventType.TEST:
        return Request(url, b"", headers, method="GET")
    state = _STATES.get(str(event.condition.get("state", "")))
    if event.type != EventType.EXPERIMENT_STATE_CHANGE or state is None:
        raise NotAnnounced(f"a commit has no status for {event.type}")
    experiment = event.data.get("experiment", {})
    name = experiment.get("name") or "experiment"
    status = {
        "state": state,
        "description": _plain(_description(announcement), DESCRIPTION_CHARACTERS_MAX),
        "context": _plain(f"detcloud/{name}", CONTEXT_CHARACTERS_MAX),
    }
    if announcement.link:
        status["target_url"] = announcement.link
    return json_request(f"{url}/statuses/{_commit(announcement)}", status, headers)


def _commit(announcement: Announcement) -> str:
    """Return the experiment's commit. Raises NotAnnounced without a commit of the repository."""
    experiment = announcement.event.data.get("experiment", {})
    source = experiment.get("github") or {}
    if not source.get("commit"):
        raise NotAnnounced(
            "the experiment has no commit: set integrations.github.commit, or submit with --git"
        )
    repository = parse_repository(announcement.url)
    stated = source.get("repository") or repository
    if stated.lower() != repository.lower():
        raise NotAnnounced(f"the commit of the experiment is in {stated}, not in {repository}")
    return str(source["commit"])


def _description(announcement: Announcement) -> str:
    """Return the title of the event, with the first line of the text."""
    line = announcement.event.text.strip().partition("\n")[0]
    return f"{announcement.title}: {line}" if line else announcement.title


def _plain(text: str, characters_max: int) -> str:
    """Return a text of at most `characters_max` characters. A cut text ends in an ellipsis.

    GitHub refuses characters of four bytes, which become question marks.
    """
    plain = "".join(
        "?" if letter > "\uffff" else letter if letter.isprintable() else " " for letter in text
    )
    return plain if len(plain) <= characters_max else f"{plain[: characters_max - 1]}…"
