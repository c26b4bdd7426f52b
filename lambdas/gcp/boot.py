"""Rendering of the boot script of a Compute Engine instance.

A launch passes the script as the metadata `startup-script`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from control_plane.agents.agent_code import agent_code
from control_plane.fleet.records import IntentRow
from control_plane.gcp.machine_types import gpus_of, parse_instance_type
from detcloud.shared.gcp_identity import token_audience
from detcloud.shared.identity_purposes import AGENT_CODE, proven_cluster
from lambdas.boot_network import network_commands
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
    parse_section,
)

# A stored section omits default values. The section's model has this default, but importing the
# model takes time (docs/benchmarks.md: cold starts).
NFS_VERSION_DEFAULT = "3"


def startup_script(url: str, cluster: str, code_place: str) -> Callable[[IntentRow], bytes]:
    """Return a function that renders the boot script of a launch request.

    The script contains no secret, except those in the pool's own `startup_script` and `proxy`. The
    function raises ConfigurationError if a setting of the pool is unsafe in a boot script. It
    raises ValueError if the stored settings are not JSON, and KeyError for a file system without
    `server`, `share` or `folder`.

    Args:
        url: the URL of the cluster's API.
        cluster: the id of the cluster.
        code_place: the URL of the folder that contains the archives of the agent's code by digest.
            "" if instances request the code from the cluster, with a proof of identity.
    """

    def render_script(request: IntentRow) -> bytes:
        section = provider_section(request)
        asking = proven_cluster(cluster, AGENT_CODE)
        values = {
            **common_values(request, url, cluster, code_place, _gpus(request)),
            "CODE_AUDIENCE": token_audience(asking, agent_code().sha256),
            "PREEMPTION_SECONDS": str(preemption_seconds(section)),
            "CLOUD_LOGGING": "1" if section.get("use_cloud_logging") is True else "",
        }
        check_plain(values.items())
        values |= mount_values(section, _mount_fields)
        values["NETWORK"] = network_commands(section)
        values["STARTUP_SCRIPT"] = isolated_command(section.get("startup_script") or "")
        return fill_script("gce.sh", values)

    return render_script


def _gpus(request: IntentRow) -> int | None:
    """Return the number of GPUs of the launched type.

    Return None if neither the pool's settings nor the catalogue have the type, and for an invalid
    type. Raises ConfigurationError for invalid settings.
    """
    instance = parse_instance_type(request.offering.instance_type)
    return gpus_of(instance, parse_section(request.section).machine_types) if instance else None


def _mount_fields(share: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return the arguments of mount_file_system for an NFS share: `nfs`, source, folder, version.

    The default version is 3. Raises KeyError without `server`, `share` or `folder`.
    """
    source = f"{share['server']}:{share['share']}"
    return "nfs", source, share["folder"], share.get("version", NFS_VERSION_DEFAULT)


def preemption_seconds(section: Mapping[str, Any]) -> int:
    """Return the seconds from a preemption notice to the end of an instance.

    Return EXTENDED_NOTICE_SECONDS if the pool sets `extended_preemption_notice`. Otherwise return
    the `preemptionNoticeDuration` in the pool's `base_config`, but at least NOTICE_SECONDS. A
    missing or invalid duration counts as 0. The instance's metadata do not contain this time.

    Args:
        section: the cloud's own settings of the pool, as `provider_section` returns them.
    """
    if section.get("extended_preemption_notice") is True:
        return EXTENDED_NOTICE_SECONDS
    scheduling = (section.get("base_config") or {}).get("scheduling") or {}
    duration = scheduling.get("preemptionNoticeDuration") or {}
    seconds = duration.get("seconds", 0) if isinstance(duration, Mapping) else 0
    return max(NOTICE_SECONDS, int(seconds) if str(seconds).isdecimal() else 0)
