"""The OpenAPI document keeps the names by which programs made from it know its schemas."""

from control_plane.api.openapi import SCHEMA_NAMES
from tests.unit.api.cluster import Cluster


def test_renamed_classes_keep_the_names_of_their_schemas(cluster: Cluster) -> None:
    schemas = cluster.get("/openapi.json").json["components"]["schemas"]
    assert set(SCHEMA_NAMES.values()) <= set(schemas)
    assert not set(SCHEMA_NAMES) & set(schemas)
    assert schemas["Enrolled"]["title"] == "Enrolled"


def test_every_reference_leads_to_a_schema(cluster: Cluster) -> None:
    answer = cluster.get("/openapi.json")
    schemas = answer.json["components"]["schemas"]
    references = {
        part.partition('"')[0] for part in answer.body.decode().split("#/components/schemas/")[1:]
    }
    assert references
    assert references <= set(schemas)
