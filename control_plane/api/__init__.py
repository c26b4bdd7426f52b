"""The HTTPS API: one ASGI application for uvicorn, Lambda and Cloud Run alike."""
