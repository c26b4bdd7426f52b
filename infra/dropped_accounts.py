"""The check of deployed remote accounts that the settings no longer have, before a deployment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from infra.stack_program import PROJECT, REMOTE_SETTING, DrainFailed, StackProgram

OTHER_CLOUDS: Final = f"{PROJECT}:{REMOTE_SETTING}"


def check_dropped_accounts(
    program: StackProgram, team: str, config: Mapping[str, str], before: str, settings: Path
) -> list[str]:
    """Return lines about the remaining resources of remote accounts that the settings dropped.

    `before` is the deployed text of `otherClouds`, `config` the new configuration and `settings`
    the path of the settings file. For each dropped account with remaining resources, write a
    removal script `remove-CLOUD-of-TEAM.sh` into the folder of `settings`, replacing an older one.
    The lines name the resources and the script. Return [] if nothing remains.

    Raises:
        DrainFailed: a dropped account still has instances, which the cluster would never terminate,
            or an account cannot be read.
        SettingsInvalid: the new configuration is invalid.
        OSError: a script cannot be written.
    """
    try:
        dropped = program.find_dropped_accounts(team, config, before)
    except DrainFailed as error:
        raise DrainFailed(
            f"{OTHER_CLOUDS} no longer has a remote account that was deployed, and {error}"
        ) from None
    told = []
    for remote in dropped:
        if remote.instances:
            raise DrainFailed(
                f"{OTHER_CLOUDS} no longer has {remote.place}, and the cluster would lose its "
                f"instances in that account: {', '.join(remote.instances)}. Restore the setting, "
                "remove the account's pools from the cluster's configuration, deploy, and wait "
                "until `detcloud resource-pool list` shows no instances of these pools"
            )
        script = settings.with_name(f"remove-{remote.cloud}-of-{team}.sh")
        script.write_text(remote.removal, encoding="utf-8")
        told += [f"{OTHER_CLOUDS}: not deleted: {line}" for line in remote.leftovers]
        told.append(f"`bash {script}` removes these resources, with credentials of {remote.place}")
    return told
