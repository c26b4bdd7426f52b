"""The boot script of Compute Engine's instances, as a launch gives it to them: their metadata's
`startup-script`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from control_plane.agents.agent_code import agent_code
from control_plane.fleet.records import IntentRow
from detcloud.shared.gcp_identity import token_audience
from detcloud.shared.identity_purposes import AGENT_CODE, proven_cluster
from lambdas.boot_script import (
    check_plain,
    common_values,
    fill_script,
    isolated_command,
    mount_values,
    provider_section,
)
from provisioner.clouds.gcp.launch_request import (
    EXTENDED_NOTICE_SECONDS,
    NOTICE_SECONDS,
)

# The pool's own section leaves a default out. Its model takes time to import (docs/benchmarks.md:
# cold starts).
NFS_VERSION_DEFAULT = "3"


def startup_script(url: str, cluster: str, code_place: str) -> Callable[[IntentRow], bytes]:
    """Return a function that renders the script of a launch; `url` is the cluster's API, and
    `code_place` the URL in its bucket below which the agent's code is, by its digest. Without one
    the instance asks the cluster for it, and proves who it is.

    A script holds no secret but what a pool's `startup_script` itself contains. The function raises
    ConfigurationError for a section that no script can be made of.
    """

    def render_script(request: IntentRow) -> bytes:
        section = provider_section(request)
        asking = proven_cluster(cluster, AGENT_CODE)
        values = {
            **common_values(request, url, cluster, code_place),
            "CODE_AUDIENCE": token_audience(asking, agent_code().sha256),
            "PREEMPTION_SECONDS": str(preemption_seconds(section)),
            "CLOUD_LOGGING": "1" if section.get("use_cloud_logging") is True else "",
        }
        check_plain(values.items())
        values |= mount_values(section, _mount_fields)
        values["STARTUP_SCRIPT"] = isolated_command(section.get("startup_script") or "")
        return fill_script("gce.sh", values)

    return render_script


def _mount_fields(share: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return the arguments of the script's mount_file_system."""
    source = f"{share['server']}:{share['share']}"
    return "nfs", source, share["folder"], share.get("version", NFS_VERSION_DEFAULT)


def preemption_seconds(section: Mapping[str, Any]) -> int:
    """The time from the notice of a preemption to its end: the `preemptionNoticeDuration` that the
    launch's scheduling gets by this section, which no metadata tell the instance, or what there is
    without it.
    """
    if section.get("extended_preemption_notice") is True:
        return EXTENDED_NOTICE_SECONDS
    scheduling = (section.get("base_config") or {}).get("scheduling") or {}
    duration = scheduling.get("preemptionNoticeDuration") or {}
    seconds = duration.get("seconds", 0) if isinstance(duration, Mapping) else 0
    return max(NOTICE_SECONDS, int(seconds) if str(seconds).isdecimal() else 0)
