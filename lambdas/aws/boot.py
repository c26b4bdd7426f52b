"""The boot script of EC2's instances, as a launch gives it to them."""

import gzip
from collections.abc import Callable, Mapping

from control_plane.fleet.records import IntentRow
from lambdas.boot_script import (
    boot_part,
    check_plain,
    common_values,
    fill_script,
    isolated_command,
    mount_values,
    provider_section,
)

# Who fetches the agent's code and from where. A bucket in another cloud knows no role of this one:
# the cluster, which a proof convinces, signs for it.
OWN_BUCKET = ("fetch_code.py", '"$code_place/$code_sha256"')
OTHER_BUCKET = (
    "ask_for_code.py",
    '"$url/api/v1/instances/$name/agent-code" "$cluster" "$pool" "$code_sha256"',
)


def user_data(
    url: str, cluster: str, code_place: str, *, session_manager: bool = False
) -> Callable[[IntentRow], bytes]:
    """Return a function that renders the script of a launch, compressed; `url` is the cluster's
    API, and `code_place` the URL in its bucket below which the agent's code is, by its digest;
    without one the instance asks the cluster for it, and proves who it is. With `session_manager`
    Systems Manager may open sessions.

    A script holds no secret but what a pool's `startup_script` itself contains.
    """

    def render_script(request: IntentRow) -> bytes:
        section = provider_section(request)
        values = {
            **common_values(request, url, cluster, code_place),
            "LOG_GROUP": section.get("log_group") or "",
            "LOG_STREAM": section.get("log_stream") or "",
            "SESSION_MANAGER": "1" if session_manager else "",
        }
        check_plain(values.items())
        values |= mount_values(section, _mount_fields)
        values["ROLE_SIGNATURE"] = boot_part("role_signature.py")
        fetcher, place = OWN_BUCKET if code_place else OTHER_BUCKET
        values |= {"FETCH_CODE": boot_part(fetcher), "FETCH_FROM": place}
        values["STARTUP_SCRIPT"] = isolated_command(section.get("startup_script") or "")
        # EC2 takes 16 KB, which it would fill as it is; cloud-init unpacks what is compressed.
        return gzip.compress(fill_script("ec2.sh", values), mtime=0)

    return render_script


def _mount_fields(file_system: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return the arguments of the script's mount_file_system."""
    kind, mount_name = file_system.get("type", "efs"), file_system.get("mount_name", "")
    return kind, file_system["id"], file_system["folder"], mount_name
