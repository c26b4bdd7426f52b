"""`python -m control_plane.api.describe`: print the OpenAPI document, for code generators."""

import json

from control_plane.api.openapi import openapi_document
from control_plane.api.routes import all_routes

if __name__ == "__main__":
    print(json.dumps(openapi_document("detcloud", "1", all_routes())))
