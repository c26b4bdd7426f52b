"""`python -m control_plane.api.describe`: print the OpenAPI document, for programs made from it."""

import json

from control_plane.api.openapi import openapi_document
from control_plane.api.routes import ROUTERS

if __name__ == "__main__":
    routes = [route for router in ROUTERS for route in router.routes]
    print(json.dumps(openapi_document("detcloud", "1", routes)))
