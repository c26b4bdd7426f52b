"""The request that launches a single instance like a fleet. Pure.

CreateFleet with DryRun checks only permissions, and needs an existing launch template. RunInstances
with DryRun checks the image, the network, the tags and all policies of a launch.
"""

import base64
from collections.abc import Mapping
from typing import Any

# The resources that RunInstances can tag, among the tagged resources of a fleet request.
_TAGGED = ("instance", "volume")


def single_launch(template: Mapping[str, Any], fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of RunInstances for a single instance of a fleet.

    Args:
        template: the content of the fleet's launch template, from `launch_template_data`.
        fleet: the parameters of CreateFleet, from `fleet_request`. The first override counts.
    """
    override = fleet["LaunchTemplateConfigs"][0]["Overrides"][0]
    subnet = override.get("SubnetId")
    where = {"SubnetId": subnet} if subnet else {}
    request: dict[str, Any] = {
        **template,
        # Botocore encodes the user data of RunInstances, but not that of a launch template.
        "UserData": base64.b64decode(template["UserData"]),
        "NetworkInterfaces": [{**item, **where} for item in template["NetworkInterfaces"]],
        "InstanceType": override["InstanceType"],
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [
            item for item in fleet["TagSpecifications"] if item["ResourceType"] in _TAGGED
        ],
    }
    if "Placement" in override:
        request["Placement"] = override["Placement"]
    if fleet["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot":
        price = {"MaxPrice": override["MaxPrice"]} if "MaxPrice" in override else {}
        options = {"SpotInstanceType": "one-time", **price}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    return request
