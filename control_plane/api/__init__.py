"""The HTTPS API: an ASGI application that runs on uvicorn, Lambda and Cloud Run."""
