"""The clouds that a cluster can be deployed to: the registry of stacks.

A new cloud adds its line here, and its folder of that name; its program's module has a `PROGRAM`.
One in which clusters of other clouds can have pools has a second line: the module of its remote
account.
"""

from importlib import import_module
from typing import Any, Final

from infra.remote_accounts import Launcher, RemoteAccount
from infra.stack_program import StackProgram

PROGRAMS: Final = {"aws": "infra.aws.program", "gcp": "infra.gcp.program"}
REMOTE_ACCOUNTS: Final = {"aws": "infra.aws.remote_account", "gcp": "infra.gcp.remote_account"}
# Whose stack is exported where nobody says.
DEFAULT_CLOUD: Final = "aws"


def load_program(cloud: str) -> StackProgram:
    """Return the stack of a cloud, which is imported now."""
    program: StackProgram = import_module(PROGRAMS[cloud]).PROGRAM
    return program


def open_remote_account_in(cloud: str, value: object, launcher: Launcher) -> RemoteAccount:
    """Return the remote account in a cloud of REMOTE_ACCOUNTS that a setting's value describes.
    Raises ValueError with what was expected.
    """
    module: Any = import_module(REMOTE_ACCOUNTS[cloud])
    remote: RemoteAccount = module.open_remote_account(value, launcher)
    return remote
