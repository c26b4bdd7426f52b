"""`python -m detcloud.agent.machine VERB`: installs, repairs or removes the agent of this machine.

The options are a JSON object on the standard input, so that secrets never appear in command lines.
Each finding is printed as a line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from detcloud.agent.machine.account import AccountFailed
from detcloud.agent.machine.checks import Finding
from detcloud.agent.machine.installer import InstallationFailed, InstallRequest, Package
from detcloud.agent.machine.installer import install as install_agent
from detcloud.agent.machine.installer import remove as remove_agent
from detcloud.agent.machine.layout import Settings, find_layout, read_settings
from detcloud.agent.machine.services import ServiceFailed
from detcloud.agent.machine.versions import VersionFailed

# Variables of the installer that the agent gets as well.
VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)
_EXPECTED = (AccountFailed, InstallationFailed, ServiceFailed, VersionFailed, OSError, ValueError)


def main() -> int:
    """Execute the verb of the command line, and return the exit code.

    Return 0 after success, 1 after a failure with a last finding `error`, and 2 for unusable
    arguments.
    """
    os.umask(0o022)
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    if verb not in ("install", "remove"):
        print("usage: python -m detcloud.agent.machine install|remove < OPTIONS", file=sys.stderr)
        return 2
    try:
        options: dict[str, Any] = json.load(sys.stdin)
        is_user_install = bool(options.get("user_install"))
        if verb == "install":
            install_agent(_parse_request(options, is_user_install), _print_finding)
        else:
            remove_agent(is_user_install=is_user_install, report=_print_finding)
    except _EXPECTED as error:
        _print_finding(Finding(verb, "error", str(error)))
        return 1
    return 0


def _parse_request(options: dict[str, Any], is_user_install: bool) -> InstallRequest:
    """Return the request for the options. Raise OSError if the archive cannot be read.

    A missing option keeps the setting of the present installation.
    """
    layout = find_layout(is_user_install=is_user_install)
    known = read_settings(layout.config) or Settings("", "", "", "")

    def choose(option: str, former: str, default: str = "") -> str:
        return str(options.get(option) or former or default)

    more = options.get("options")
    settings = Settings(
        url=choose("url", known.url),
        pool=choose("pool", known.pool),
        name=choose("name", known.name, default_name()),
        work=choose("work_dir", known.work, str(layout.work)),
        pin=choose("pin", known.pin),
        label=choose("label", known.label),
        options=tuple(str(word) for word in more) if more else known.options,
        updates=bool(options.get("updates", known.updates)),
        python=choose("python", known.python, sys.executable),
        environment={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
    )
    archive = Path(str(options["archive"])).read_bytes()
    package = Package(str(options["version"]), str(options["sha256"]), archive)
    runtime = _find_runtime(settings.options)
    return InstallRequest(
        settings, package, str(options.get("token") or ""), is_user_install, runtime
    )


def _find_runtime(options: tuple[str, ...]) -> str:
    """Return the container runtime that the options of the agent name, `process` by default."""
    for place, word in enumerate(options):
        if word == "--container-runtime" and place + 1 < len(options):
            return options[place + 1]
        if word.startswith("--container-runtime="):
            return word.partition("=")[2]
    return "process"


def default_name() -> str:
    """Return the name of this machine in the form of an agent's name."""
    host = socket.gethostname().partition(".")[0]
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in host)
    return kept.strip("-")[:63] or "agent"


def _print_finding(finding: Finding) -> None:
    print(json.dumps(finding._asdict()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
