"""Explanations of launches that a policy or a missing permission refuses. Pure.

Google's messages name the constraint or the permission, and not what the operator of a cluster
changes.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_CONSTRAINT: Final = re.compile(r"\b(?:constraints|customConstraints)/([\w.]*\w)")
_PERMISSION: Final = re.compile(r"Required '([\w.]+)' permission for")
_KEY: Final = re.compile(r"cloudkms\.\w+|\bCloud KMS\b")

_PRIVATE: Final = (
    "set detcloud:privateSubnets: true, or provider.network_interface.external_ip: false for a "
    "network of the pool's own"
)
_SERIAL_PORT: Final = "remove serial-port-enable from provider.base_config.metadata"
_FORWARDING: Final = "remove canIpForward from provider.base_config"
_OS_LOGIN: Final = "set enable-oslogin in provider.base_config.metadata to TRUE"
_POLICY_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compute.disableSerialPortAccess": _SERIAL_PORT,
        "compute.managed.disableSerialPortAccess": _SERIAL_PORT,
        "compute.managed.requireOsLogin": _OS_LOGIN,
        "compute.managed.vmCanIpForward": _FORWARDING,
        "compute.managed.vmExternalIpAccess": _PRIVATE,
        "compute.requireOsLogin": _OS_LOGIN,
        "compute.requireShieldedVm": (
            "set enableSecureBoot: true in provider.base_config.shieldedInstanceConfig"
        ),
        "compute.restrictSharedVpcSubnetworks": "use a subnetwork that the policy allows",
        "compute.trustedImageProjects": (
            "set provider.boot_disk_source_image to an image of an allowed project"
        ),
        "compute.vmCanIpForward": _FORWARDING,
        "compute.vmExternalIpAccess": _PRIVATE,
        "gcp.resourceLocations": "use a region or zone that the policy allows",
        "gcp.restrictCmekCryptoKeyProjects": "use a key of an allowed project in detcloud:kmsKey",
        "gcp.restrictNonCmekServices": "set detcloud:kmsKey",
    }
)
_OTHER_REMEDY: Final = (
    "change the pool as the policy requires, or ask the manager of the organization's policies for "
    "an exception"
)
_PERMISSION_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compute.subnetworks.use": (
            "grant roles/compute.networkUser on the subnetwork to the launching account"
        ),
        "compute.subnetworks.useExternalIp": (
            "grant roles/compute.networkUser on the subnetwork to the launching account"
        ),
        "iam.serviceAccounts.actAs": (
            "let the launching account act as the instances' account "
            "(roles/iam.serviceAccountUser on that account)"
        ),
        "compute.images.useReadOnly": (
            "grant roles/compute.imageUser in the image's project to the launching account"
        ),
    }
)
_LOST_PERMISSION: Final = (
    "deploy the stack again, which grants the launching account its roles; if the account has the "
    "permission, a deny policy or a condition withholds it (`gcloud policy-troubleshoot iam`)"
)
_KEY_REMEDY: Final = (
    "let Compute Engine's service agent use the key: `detcloud deploy policy gcp --key` prints the "
    "binding"
)


def explain_refusal(message: str) -> str:
    """Return Google's message of a refused launch, preceded by the operator's next step.

    A message that names neither a constraint, a permission nor a key is returned unchanged. The
    next step comes first, because long messages are shortened.
    """
    if names := dict.fromkeys(_CONSTRAINT.findall(message)):
        remedies = dict.fromkeys(_POLICY_REMEDIES.get(name, _OTHER_REMEDY) for name in names)
        listed = ", ".join(names)
        return (
            f"a policy of the organization ({listed}) refuses the launch: {'; '.join(remedies)}. "
            f"Google's message: {message}"
        )
    if _KEY.search(message):
        return f"{_KEY_REMEDY}. Google's message: {message}"
    if found := _PERMISSION.search(message):
        remedy = _PERMISSION_REMEDIES.get(found[1], _LOST_PERMISSION)
        return f"{remedy}. Google's message: {message}"
    return message
