"""`python -m infra.terraform.schema TYPE...`: regenerates the schema file of a cloud's provider.

The file contains the types that it had before, and the named Pulumi types, such as aws:kms/key:Key.
All types must belong to the same cloud. Run the command in a folder where `terraform init` has
installed the provider.
"""

import json
import subprocess
import sys
from typing import Any

from infra.clouds import DEFAULT_CLOUD, load_program

REGISTRY = "registry.terraform.io"


def slim_schema(block: dict[str, Any]) -> dict[str, Any]:
    """Reduce a block's schema in Terraform's form to three keys.

    `settable` has the names of optional and required attributes that are not deprecated. `text` has
    the names of text attributes. `blocks` has the slim schemas of nested blocks, except `timeouts`.
    """
    attributes = block.get("attributes", {})
    nested = block.get("block_types", {})
    return {
        "settable": [
            name
            for name, attribute in attributes.items()
            if (attribute.get("optional") or attribute.get("required"))
            and not attribute.get("deprecated")
        ],
        "text": [
            name for name, attribute in attributes.items() if attribute.get("type") == "string"
        ],
        "blocks": {
            name: slim_schema(item["block"]) for name, item in nested.items() if name != "timeouts"
        },
    }


def _read_terraform_schema(source: str) -> dict[str, Any]:
    """Return the provider's schemas of resource types from the output of the installed Terraform.

    Raise CalledProcessError if Terraform fails, FileNotFoundError without Terraform, and KeyError
    if the provider is not installed in the working folder.
    """
    done = subprocess.run(
        ["terraform", "providers", "schema", "-json"], check=True, capture_output=True
    )
    schemas = json.loads(done.stdout)["provider_schemas"]
    resources: dict[str, Any] = schemas[f"{REGISTRY}/{source}"]["resource_schemas"]
    return resources


def main() -> int:
    """Regenerate the schema file of the cloud of the first named type, and return 0.

    Without types, regenerate the file of the default cloud. If Terraform's provider lacks a type,
    print a message to stderr, write nothing and return 1. Raise KeyError for an unknown cloud and
    without an installed provider, and CalledProcessError if Terraform fails.
    """
    cloud = sys.argv[1].partition(":")[0] if sys.argv[1:] else DEFAULT_CLOUD
    provider = load_program(cloud).terraform
    resources, file = _read_terraform_schema(provider.source), provider.schema_file
    wanted = set(provider.schema) if file.exists() else set()
    for token in sys.argv[1:]:
        known = next((name for name in provider.type_names(token) if name in resources), None)
        if known is None:
            print(f"{token}: Terraform's provider has no such resource", file=sys.stderr)
            return 1
        wanted.add(known)
    slim = {name: slim_schema(resources[name]["block"]) for name in sorted(wanted)}
    lines = ",\n".join(f'"{name}": {json.dumps(item)}' for name, item in slim.items())
    file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
