"""Rules of the simulated account and of its organization about launches."""

from tests.emulators.ec2.machine import tag_list
from tests.emulators.ec2.region import ACCOUNT, Params, Region, Result


def describe_security_groups(region: Region, params: Params) -> Result:
    """Return the groups with the name of the filter `group-name`; other filters are ignored."""
    names = {
        name
        for item in params.get("Filters") or ()
        if item["Name"] == "group-name"
        for name in item["Values"]
    }
    groups = [
        {"GroupId": key, "GroupName": name, "Tags": tag_list({})}
        for key, name in region.security_groups.items()
        if not names or name in names
    ]
    return {"SecurityGroups": groups}


def get_ebs_default_kms_key_id(region: Region, params: Params) -> Result:
    return {"KmsKeyId": "alias/aws/ebs"}


def get_allowed_images_settings(region: Region, params: Params) -> Result:
    return {"State": region.allowed_images, "ManagedBy": "account"}


def describe_vpc_block_public_access_options(region: Region, params: Params) -> Result:
    return {
        "VpcBlockPublicAccessOptions": {
            "AwsAccountId": ACCOUNT,
            "AwsRegion": region.name,
            "State": "update-complete",
            "InternetGatewayBlockMode": region.public_access,
            "ExclusionsAllowed": "allowed",
        }
    }


def describe_vpc_block_public_access_exclusions(region: Region, params: Params) -> Result:
    place = f"arn:aws:ec2:{region.name}:{ACCOUNT}"
    return {
        "VpcBlockPublicAccessExclusions": [
            {
                "ExclusionId": f"vpcbpa-exclude-{number:017x}",
                "InternetGatewayExclusionMode": "allow-egress",
                "ResourceArn": f"{place}:{name.partition('-')[0]}/{name}",
                "State": "create-complete",
            }
            for number, name in enumerate(region.excluded)
        ]
    }
