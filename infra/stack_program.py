"""The interface of a cloud's stack to the deployment: a program of Pulumi, and a check of the
stack's configuration before anything is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.terraform.provider import TerraformProvider

# Pulumi's project, with whose name the settings of a stack begin.
PROJECT = "detcloud"


class SettingsInvalid(Exception):
    """Settings have problems: each is a line with the place, the value and what was expected."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class ConfigReport:
    """A configuration that is right. `architecture`: the functions'; `warnings`: lines for the one
    who deploys.
    """

    architecture: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackProgram:
    """A cloud's stack.

    Attributes:
        run: the program; it makes the stack that Pulumi's present one is named after.
        check_config: looks at the configuration of a team's stack; raises SettingsInvalid.
        terraform: Terraform's provider of the cloud.
    """

    run: Callable[[], None]
    check_config: Callable[[str, Mapping[str, object]], ConfigReport]
    terraform: TerraformProvider
