"""The registry of clouds that clusters can be deployed to.

A new cloud adds a folder with its name and a line in PROGRAMS; the named module defines `PROGRAM`.
If clusters of other clouds can have pools in the new cloud, a line in REMOTE_ACCOUNTS names the
module of the remote account.
"""

from importlib import import_module
from typing import Any, Final

from infra.remote_accounts import Launcher, RemoteAccount
from infra.stack_program import StackProgram

PROGRAMS: Final = {"aws": "infra.aws.program", "gcp": "infra.gcp.program"}
REMOTE_ACCOUNTS: Final = {"aws": "infra.aws.remote_account", "gcp": "infra.gcp.remote_account"}
# The cloud of a deployment without the option --cloud.
DEFAULT_CLOUD: Final = "aws"


def load_program(cloud: str) -> StackProgram:
    """Import and return the stack program of a cloud.

    Raise KeyError for an unknown cloud, and ImportError if the cloud's packages are not installed.
    """
    program: StackProgram = import_module(PROGRAMS[cloud]).PROGRAM
    return program


def open_remote_account_in(cloud: str, value: object, launcher: Launcher) -> RemoteAccount:
    """Return the remote account in a cloud that `value` describes, without calling the cloud.

    `cloud` is a key of REMOTE_ACCOUNTS; its module is imported. `launcher` is the function that
    launches instances. Raise ValueError with a text of what was expected if `value` is invalid.
    Raise KeyError for another cloud.
    """
    module: Any = import_module(REMOTE_ACCOUNTS[cloud])
    remote: RemoteAccount = module.open_remote_account(value, launcher)
    return remote
