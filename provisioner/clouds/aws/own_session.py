"""AWS sessions of a cluster on own machines, from the credentials in the server's environment.

The credentials come from botocore's chain: variables, profiles, and the role of the machine. The
server stores no credentials.
"""

from typing import Any

from botocore.credentials import DeferredRefreshableCredentials

from detcloud.shared.aws import new_session

PROVIDER = "assume-role"


def own_session(role: str, cluster: str, region: str) -> Any:
    """Return a botocore session with the environment's credentials, or of a role; make no call yet.

    The session of a role requests temporary credentials at first use, with the environment's
    credentials, and again before they expire. The first use then raises the errors of AWS's token
    service, and NoCredentialsError without credentials in the environment.

    Args:
        role: the ARN of the role. "" for the environment's own credentials.
        cluster: the cluster's id, for the name of the role session.
        region: the default region of clients.
    """
    session = new_session()
    session.set_config_variable("region", region)
    if not role:
        return session

    def assume() -> dict[str, str]:
        client = new_session().create_client("sts", region)
        name = f"detcloud-{cluster}"[:64]
        keys = client.assume_role(RoleArn=role, RoleSessionName=name)["Credentials"]
        return {
            "access_key": keys["AccessKeyId"],
            "secret_key": keys["SecretAccessKey"],
            "token": keys["SessionToken"],
            "expiry_time": keys["Expiration"].isoformat(),
        }

    # botocore has no public method to set refreshable credentials.
    session._credentials = DeferredRefreshableCredentials(assume, PROVIDER)
    return session
