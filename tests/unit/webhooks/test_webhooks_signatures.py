"""The signatures of requests."""

import base64
import hashlib
import hmac

from control_plane.webhooks.signatures import new_secret, signature_headers

BODY = b'{"a":1}'


def test_standard_signature_covers_id_time_and_body() -> None:
    # The vector of Standard Webhooks.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    payload = b'{"test": 2432232314}'
    headers = signature_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, payload)
    assert headers["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert headers["webhook-timestamp"] == "1614265330"
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_signature_of_determined_covers_time_and_body() -> None:
    secret = new_secret()
    headers = signature_headers(secret, "id", 17, BODY)
    expected = hmac.new(secret.encode(), b"17," + BODY, hashlib.sha256).hexdigest()
    assert headers["X-Determined-AI-Signature"] == expected
    assert headers["X-Determined-AI-Signature-Timestamp"] == "17"


def test_secrets_have_32_random_bytes() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert len(base64.b64decode(first.removeprefix("whsec_"))) == 32
