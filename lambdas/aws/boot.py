"""Rendering of the boot script of an EC2 instance, which a launch passes as user data."""

import gzip
from collections.abc import Callable, Mapping

from control_plane.aws.instance_types import gpus_of
from control_plane.fleet.records import IntentRow
from lambdas.boot_network import network_commands
from lambdas.boot_script import (
    boot_part,
    check_plain,
    common_values,
    fill_script,
    isolated_command,
    mount_values,
    provider_section,
)

# The program that fetches the agent's code, and the program's arguments. A bucket in another cloud
# cannot check a role of AWS. The instance therefore proves its identity to the cluster, and the
# cluster redirects the request to a signed URL.
OWN_BUCKET = ("fetch_code.py", '"$code_place/$code_sha256"')
OTHER_BUCKET = (
    "ask_for_code.py",
    '"$url/api/v1/instances/$name/agent-code" "$cluster" "$pool" "$code_sha256"',
)


def user_data(
    url: str, cluster: str, code_place: str, *, session_manager: bool = False
) -> Callable[[IntentRow], bytes]:
    """Return a function that renders the boot script of a launch request, compressed with gzip.

    The script contains no secret, except those in the pool's own `startup_script` and `proxy`.
    Equal requests give equal bytes. The function raises ConfigurationError if a setting of the pool
    is unsafe in a boot script. It raises ValueError if the stored settings are not JSON, and
    KeyError for a file system without `id` or `folder`.

    Args:
        url: the URL of the cluster's API.
        cluster: the id of the cluster.
        code_place: the URL of the folder that contains the archives of the agent's code by digest.
            "" if instances request the code from the cluster, with a proof of identity.
        session_manager: whether to allow sessions of AWS Systems Manager.
    """

    def render_script(request: IntentRow) -> bytes:
        section = provider_section(request)
        values = {
            **common_values(
                request, url, cluster, code_place, gpus_of(request.offering.instance_type)
            ),
            "LOG_GROUP": section.get("log_group") or "",
            "LOG_STREAM": section.get("log_stream") or "",
            "SESSION_MANAGER": "1" if session_manager else "",
        }
        check_plain(values.items())
        values |= mount_values(section, _mount_fields)
        values["ROLE_SIGNATURE"] = boot_part("role_signature.py")
        fetcher, place = OWN_BUCKET if code_place else OTHER_BUCKET
        values |= {"FETCH_CODE": boot_part(fetcher), "FETCH_FROM": place}
        values["NETWORK"] = network_commands(section)
        values["STARTUP_SCRIPT"] = isolated_command(section.get("startup_script") or "")
        # EC2 accepts at most 16 KB, which the plain script nearly fills. Cloud-init decompresses
        # user data.
        return gzip.compress(fill_script("ec2.sh", values), mtime=0)

    return render_script


def _mount_fields(file_system: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return the arguments of mount_file_system: type (default `efs`), id, folder, mount name.

    Raises KeyError without an `id` or a `folder`.
    """
    kind, mount_name = file_system.get("type", "efs"), file_system.get("mount_name", "")
    return kind, file_system["id"], file_system["folder"], mount_name
