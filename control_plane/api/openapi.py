"""The OpenAPI document of the API."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from control_plane.api.route_guards import GuardedRoute

_REFERENCE = "#/components/schemas/"

# Names of schemas by the names of their classes, where these differ: programs that were generated
# from the document know the schemas by these names.
SCHEMA_NAMES: Mapping[str, str] = {
    "BatchAnswer": "Changed",
    "BatchBody": "Batch",
    "CallerIdentity": "Who",
    "CheckpointFile": "File",
    "ClusterOverview": "Overview",
    "CollectionPreview": "Preview",
    "ConfigurationAnswer": "Applied",
    "ConfigurationBody": "ConfigurationAsked",
    "ContinueBody": "Continue",
    "CostGrouping": "By",
    "CreateBody": "Create",
    "CredentialsAnswer": "CredentialsGiven",
    "CredentialsBody": "CredentialsAsked",
    "DisableBody": "Disabling",
    "EnrolmentAnswer": "Enrolled",
    "ExperimentChangeBody": "Changes",
    "IdentityAnswer": "Identified",
    "JobChangeBody": "Change",
    "MachineNotice": "NoticeTold",
    "OfferAnswer": "Answer",
    "OfferBody": "Offer",
    "OperationBody": "Operation",
    "PoolBody": "PoolAsked",
    "PostAnswer": "Taken",
    "PostBody": "Post",
    "RemovalAnswer": "Removed",
    "SessionBody": "SessionAsked",
    "SyncBody": "Sync",
    "TemplateBody": "control_plane__api__routes__templates__Asked",
    "TokenBody": "control_plane__api__routes__tokens__Asked",
}


def openapi_document(title: str, version: str, routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The document that describes the routes, which are completed for it."""
    listed = list(routes)
    for route in listed:
        if isinstance(route, GuardedRoute):
            route.complete()
    document = get_openapi(title=title, version=version, routes=listed)
    components = document.setdefault("components", {})
    components["schemas"] = _rename_schemas(components["schemas"])
    schemes = components.setdefault("securitySchemes", {})
    schemes["bearer"] = {"type": "http", "scheme": "bearer"}
    return cast(dict[str, Any], _rename_references(document))


def _rename_schemas(schemas: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {}
    for name, schema in schemas.items():
        public_name = SCHEMA_NAMES.get(name, name)
        if public_name != name:
            schema = {**schema, "title": public_name.rpartition("__")[2]}
        renamed[public_name] = schema
    return dict(sorted(renamed.items()))


def _rename_references(node: Any) -> Any:
    """A part of the document in which every reference to a schema has its public name."""
    if isinstance(node, list):
        return [_rename_references(part) for part in node]
    if not isinstance(node, dict):
        return node
    renamed = {key: _rename_references(value) for key, value in node.items()}
    reference = renamed.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_REFERENCE)
        renamed["$ref"] = _REFERENCE + SCHEMA_NAMES.get(name, name)
    return renamed
