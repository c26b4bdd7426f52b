"""A stand-in for gcloud that logs commands, and a project of Google with the commands' results."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.gcp.account_reader import MANAGER
from infra.gcp.google_api import GoogleError
from infra.gcp.instance_ends import COMPUTE
from infra.gcp.trust_checks import IAM
from tests.patience import PROCESS_SECONDS_MAX

_PROGRAM = """#!{python}
import json, sys
words = sys.argv[1:]
VERBS = ("create", "create-aws", "delete", "describe", "expire", "list", "undelete")
# For some days Google shows deleted resources of these kinds and refuses new ones of that name.
POOLS = ["iam", "workload-identity-pools"]
KEPT = (["iam", "roles"], POOLS, [*POOLS, "providers"])
def read_flags(words):
    pairs = (it[2:].partition("=") for it in words if it.startswith("--"))
    return {{name: value for name, _, value in pairs}}
def find_key(words, place):
    name = words[place + 1].partition("@")[0]
    return json.dumps([words[:place], name, read_flags(words).get("region", "")])
with open({log!r}) as log:
    done = [json.loads(line) for line in log]
made, deleted, expired = {{}}, set(), set()
for it in done:
    place = next((n for n, word in enumerate(it) if word in VERBS), -1)
    if place == -1:
        continue
    key = find_key(it, place)
    if it[place].startswith("create"):
        made[key] = it
    (deleted.add if it[place] == "delete" else deleted.discard)(key)
    # Google no longer shows an expired resource, but its name is not free yet.
    (expired.add if it[place] == "expire" else expired.discard)(key)
place = next((n for n, word in enumerate(words) if word in VERBS), -1)
kind, verb, flags = words[:place], words[place] if place >= 0 else "", read_flags(words)
if verb == "list":
    found = [it for key, it in made.items() if key not in deleted and it[:place] == kind]
    for it in found:
        own = read_flags(it)
        if own.get("network") == flags.get("network"):
            print(it[place + 1], own.get("region", ""), sep="\\t")
    sys.exit(0)
if verb == "describe":
    key = find_key(words, place)
    if key not in made or key in expired or (key in deleted and kind not in KEPT):
        sys.exit(1)
    own, gone = read_flags(made[key]), key in deleted
    said = {{
        "value(description)": own.get("description", ""),
        "value(aws.accountId)": own.get("account-id", ""),
        "value(state)": "DELETED" if gone else "ACTIVE",
        "value(deleted)": "True" if gone else "",
    }}
    print(said.get(flags.get("format"), "described"))
    sys.exit(0)
if verb.startswith("create") and find_key(words, place) in deleted | expired and kind in KEPT:
    sys.exit("there is one of that name in a deleted state")
if verb in ("delete", "undelete") and find_key(words, place) not in made:
    sys.exit("there is no " + words[place + 1])
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
"""


@dataclass
class Gcloud:
    """A gcloud program in `folder`. `commands`: the changing commands of the last script."""

    folder: Path
    commands: list[list[str]] = field(default_factory=list)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script and set `commands` to the changing commands of this script."""
        log, program = self.folder / "log", self.folder / "gcloud"
        log.touch()
        before = len(log.read_text().splitlines())
        program.write_text(_PROGRAM.format(python=sys.executable, log=str(log)))
        program.chmod(0o755)
        done = subprocess.run(
            ["bash"],
            input=script,
            env={"PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
        self.commands = [json.loads(line) for line in log.read_text().splitlines()[before:]]
        return done

    def all_commands(self) -> list[list[str]]:
        """Return the changing commands of all scripts."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def seed(self, *words: str) -> None:
        """Log a command as run, as if an earlier script had made the resource."""
        with (self.folder / "log").open("a") as log:
            log.write(json.dumps(words) + "\n")


def flags_of(words: Iterable[str]) -> dict[str, str]:
    """Return the values of a command's flags by the flag's name without dashes."""
    pairs = (word.removeprefix("--").partition("=") for word in words if word.startswith("--"))
    return {name: value for name, _, value in pairs}


def bindings_of(commands: Iterable[list[str]]) -> list[tuple[str, str, str, str]]:
    """Return (place, member, role, condition) of all bindings that commands add."""
    bindings = []
    for words in commands:
        if "add-iam-policy-binding" in words:
            place, flags = words[words.index("add-iam-policy-binding") + 1], flags_of(words)
            _, _, condition = flags.get("condition", "").partition("expression=")
            bindings.append((place, flags["member"], flags["role"], condition))
    return bindings


class Project:
    """Google's interfaces to a project after the `commands` of gcloud."""

    def __init__(self, project: str, number: str, commands: Iterable[list[str]]) -> None:
        self._bindings: dict[str, list[dict[str, Any]]] = {}
        self.there: dict[str, dict[str, Any]] = {}
        commands = list(commands)
        for place, member, role, condition in bindings_of(commands):
            binding: dict[str, Any] = {"role": role, "members": [member]}
            if condition:
                binding["condition"] = {"expression": condition}
            self._bindings.setdefault(place, []).append(binding)
        for words in commands:
            self._make(f"projects/{project}", f"projects/{number}", words)
            self._delete(words)

    def _delete(self, words: list[str]) -> None:
        """Remove the resources that a command deletes, or mark roles and pools as deleted."""
        if "delete" not in words:
            return
        ends = f"/{words[words.index('delete') + 1]}"
        for url in [name for name in self.there if name.endswith(ends)]:
            if "/roles/" in url or "/workloadIdentityPools/" in url:
                self.there[url].update(deleted=True, state="DELETED")
            else:
                del self.there[url]

    def _make(self, project: str, numbered: str, words: list[str]) -> None:
        verb = next((word for word in ("create", "create-aws") if word in words), "")
        if not verb:
            return
        name, flags = words[words.index(verb) + 1], flags_of(words)
        pools = f"{IAM}/{numbered}/locations/global/workloadIdentityPools"
        match words[: words.index(verb)]:
            case ["iam", "workload-identity-pools", "providers"]:
                key, _, value = flags["attribute-mapping"].partition("=")
                self.there[f"{pools}/{flags['workload-identity-pool']}/providers/{name}"] = {
                    "state": "ACTIVE",
                    "aws": {"accountId": flags["account-id"]},
                    "attributeCondition": flags["attribute-condition"],
                    "attributeMapping": {key: value},
                }
            case ["iam", "workload-identity-pools"]:
                self.there[f"{pools}/{name}"] = {"state": "ACTIVE"}
            case ["iam", "service-accounts"]:
                email = f"{name}@{project.partition('/')[2]}.iam.gserviceaccount.com"
                self.there[f"{IAM}/{project}/serviceAccounts/{email}"] = {"email": email}
            case ["iam", "roles"]:
                permissions = flags["permissions"].split(",")
                self.there[f"{IAM}/{project}/roles/{name}"] = {"includedPermissions": permissions}
            case ["compute", "networks"]:
                self.there[f"{COMPUTE}/{project}/global/networks/{name}"] = {}
            case ["compute", "firewall-rules"]:
                self.there[f"{COMPUTE}/{project}/global/firewalls/{name}"] = {}
            case ["compute", "networks", "subnets"]:
                place = f"{project}/regions/{flags['region']}/subnetworks/{name}"
                self.there[f"{COMPUTE}/{place}"] = {}

    def call(self, method: str, url: str, body: object = None) -> dict[str, Any]:
        """Return the answer to a GET or getIamPolicy call.

        Raise GoogleError with status 404 if no resource has the URL.
        """
        resource, mark, _ = url.replace("/getIamPolicy", ":getIamPolicy").partition(":getIamPolicy")
        if mark:
            assert method == ("GET" if resource.startswith(COMPUTE) else "POST")
            if not resource.startswith(MANAGER):
                self._find(resource)
            return {"bindings": self._bindings.get(resource.rpartition("/")[2], [])}
        if url.endswith(":getAncestry"):
            # The project belongs to no organization.
            return {"ancestor": [{"resourceId": {"type": "project", "id": "acme-ml"}}]}
        assert method == "GET"
        if "/aggregated/" in url:
            return {}
        return self._find(resource)

    def _find(self, url: str) -> dict[str, Any]:
        if url not in self.there:
            raise GoogleError(404, f"no resource has the URL {url}")
        return self.there[url]

    def lose_binding(self, role: str) -> None:
        """Remove all bindings of the roles that end with `role`."""
        for place, bindings in self._bindings.items():
            self._bindings[place] = [
                binding for binding in bindings if not binding["role"].endswith(role)
            ]
