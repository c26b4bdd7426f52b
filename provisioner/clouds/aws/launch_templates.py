"""The launch templates of pools: creation on demand, and deletion of former templates."""

import logging
from collections.abc import Callable
from typing import Any

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

from control_plane.fleet.records import IntentRow
from provisioner.clouds.aws.ec2_api import Ec2Api, epoch_ms, error_code, read_pages, tag_filters
from provisioner.clouds.aws.launch_request import (
    ROOT_DEVICE_DEFAULT,
    Ec2Settings,
    ec2_tags,
    launch_template_data,
    launch_template_name,
)
from provisioner.clouds.provider import CLUSTER_TAG, POOL_TAG, ConfigurationError
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

# When a template is created, the pool's other templates that are older than this are deleted.
TEMPLATE_TTL_MS = 24 * 60 * MINUTE_MS
TEMPLATES_PAGE_SIZE = 200

_ALREADY_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"

UserData = Callable[[IntentRow], bytes]
"""Returns the boot script of a request's instances.

The script must not change while the request may be repeated. It should be the same for all requests
of a pool, because each different script needs its own template.
"""


class LaunchTemplates:
    """The launch templates of an account in a region. `clock` returns epoch milliseconds."""

    def __init__(self, api: Ec2Api, user_data: UserData, clock: Callable[[], int]) -> None:
        self._api = api
        self._user_data = user_data
        self._clock = clock
        self._known: set[str] = set()
        self._root_devices: dict[str, str] = {}

    def ensure_template(self, request: IntentRow, settings: Ec2Settings) -> str:
        """Return the name of a launch template for the request; create a missing template in EC2.

        A template with the name that exists already is used as it is. After a creation, delete the
        pool's other templates that are older than TEMPLATE_TTL_MS. Errors of this deletion are only
        logged. Make no call for a template that this object has returned before, unless the image
        is new. After an error, the template does not count as returned.

        Raises:
            ConfigurationError: the image does not exist, or the boot script is too long.
            ClientError, BotoCoreError, ResponseParserError: EC2 refuses the template or the image,
                or does not answer.
        """
        creation = self.template_request(request, settings)
        name: str = creation["LaunchTemplateName"]
        if name in self._known:
            return name
        try:
            # The name makes the call safe to repeat. EC2 would match a client token also with a
            # template that has been deleted since.
            self._api.create_launch_template(**creation)
        except sdk.ClientError as error:
            if error_code(error) != _ALREADY_EXISTS:
                raise
        else:
            self._delete_former_templates(_pool_tags(request), name)
        self._known.add(name)
        return name

    def template_request(self, request: IntentRow, settings: Ec2Settings) -> dict[str, Any]:
        """Return the parameters of CreateLaunchTemplate for the request's launch template.

        EC2 is asked once for each image with an id. Raises the errors of `ensure_template`.
        """
        data = launch_template_data(
            request, settings, self._user_data(request), self._root_device(settings.image_id)
        )
        custom = {tag.key: tag.value for tag in settings.custom_tags}
        tags = {**custom, **_pool_tags(request)}
        return {
            "LaunchTemplateName": launch_template_name(request, data),
            "LaunchTemplateData": data,
            "TagSpecifications": [{"ResourceType": "launch-template", "Tags": ec2_tags(tags)}],
        }

    def forget_template(self, name: str) -> None:
        """Remove a template from the cache, so that the next request creates a missing template.

        EC2 is not asked, and its template stays. Ignore a name that is not in the cache.
        """
        self._known.discard(name)

    def _delete_former_templates(self, pool: dict[str, str], name: str) -> None:
        """Delete the pool's templates in EC2 that are older than TEMPLATE_TTL_MS, except `name`.

        The pool's tags select the templates. An open launch may still use a younger template. A
        launch that needs a deleted template creates it again. An error of EC2 is logged, not
        raised, and ends the deletion.
        """
        before_ms = self._clock() - TEMPLATE_TTL_MS
        api = self._api
        try:
            pages = read_pages(
                api.describe_launch_templates,
                Filters=tag_filters(pool),
                MaxResults=TEMPLATES_PAGE_SIZE,
            )
            for template in [
                launch_template for page in pages for launch_template in page["LaunchTemplates"]
            ]:
                is_old = epoch_ms(template["CreateTime"]) < before_ms
                if template["LaunchTemplateName"] != name and is_old:
                    api.delete_launch_template(LaunchTemplateName=template["LaunchTemplateName"])
        except (sdk.ClientError, sdk.BotoCoreError, ResponseParserError) as error:
            log.info("launch templates of %s could not be deleted: %s", pool, type(error).__name__)

    def _root_device(self, image: str) -> str:
        """Return the device name of the image's root disk, read from EC2 once for each image.

        The default image ("") and images from parameters (`resolve:`) have ROOT_DEVICE_DEFAULT,
        without a call. An image without the field has ROOT_DEVICE_DEFAULT too. Raises
        ConfigurationError if EC2 lists no such image, and errors of the SDK, also EC2's refusal of
        an unknown id. Errors are not cached.
        """
        if not image or image.startswith("resolve:"):
            return ROOT_DEVICE_DEFAULT
        if image not in self._root_devices:
            images = self._api.describe_images(ImageIds=[image])["Images"]
            if not images:
                text = f"provider.image_id: image {image!r:.80} does not exist in this region"
                raise ConfigurationError(text)
            self._root_devices[image] = images[0].get("RootDeviceName", ROOT_DEVICE_DEFAULT)
        return self._root_devices[image]


def _pool_tags(request: IntentRow) -> dict[str, str]:
    """Return the tags of the cluster and of the pool, which select the pool's launch templates."""
    return {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool}
