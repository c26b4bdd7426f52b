"""`python -m infra.terraform_schema TYPE...`: writes terraform_schema.json anew, with those types
of Pulumi's and those it has already, from what the Terraform that is here says of its provider.

Run it in a folder where `terraform init` has installed hashicorp/aws.
"""

import json
import subprocess
import sys
from typing import Any

from infra.terraform import SCHEMA, type_names

AWS = "registry.terraform.io/hashicorp/aws"


def slimmed(block: dict[str, Any]) -> dict[str, Any]:
    """What is needed of a block: which attributes can be set, which are text that a resource tells
    of itself, and the blocks within.
    """
    attributes = block.get("attributes", {})
    nested = block.get("block_types", {})
    return {
        "settable": [
            name
            for name, it in attributes.items()
            if (it.get("optional") or it.get("required")) and not it.get("deprecated")
        ],
        "text": [name for name, it in attributes.items() if it.get("type") == "string"],
        "blocks": {name: slimmed(it["block"]) for name, it in nested.items() if name != "timeouts"},
    }


def _of_terraform() -> dict[str, Any]:
    done = subprocess.run(
        ["terraform", "providers", "schema", "-json"], check=True, capture_output=True
    )
    found: dict[str, Any] = json.loads(done.stdout)["provider_schemas"][AWS]["resource_schemas"]
    return found


def main() -> int:
    """Refreshes what there is; 1 where a type has no counterpart."""
    theirs = _of_terraform()
    wanted = set(json.loads(SCHEMA.read_text(encoding="utf-8"))) if SCHEMA.exists() else set()
    for token in sys.argv[1:]:
        found = next((name for name in type_names(token) if name in theirs), None)
        if found is None:
            print(f"{token}: Terraform's provider has no such resource", file=sys.stderr)
            return 1
        wanted.add(found)
    slim = {name: slimmed(theirs[name]["block"]) for name in sorted(wanted)}
    lines = ",\n".join(f'"{name}": {json.dumps(it)}' for name, it in slim.items())
    SCHEMA.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
