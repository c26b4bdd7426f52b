"""HTTP responses whose JSON is encoded already."""

from fastapi import Response

from control_plane.usecases.idempotency import StoredAnswer


def json_response(content: bytes, status: int = 200) -> Response:
    """The response with this JSON."""
    return Response(content, status, media_type="application/json")


def answer_response(answer: StoredAnswer) -> Response:
    """The response to a mutation, whether it was carried out now or before."""
    return json_response(answer.content, answer.status)
