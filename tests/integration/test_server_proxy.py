"""`detcloud server` behind nginx, with TLS and a prefix of paths."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detcloud.client import Client
from detcloud.shared import pins
from detcloud.shared.pinned_connections import unverified_context
from local_cluster.certificates import make_certificate, read_pin
from tests.conftest import miss
from tests.integration.embedded_cluster import config, model_dir
from tests.integration.lab import Lab, free_port
from tests.patience import PROCESS_SECONDS_MAX, wait_until

CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/nginx.pem; ssl_certificate_key {folder}/nginx.pem;
    location /lab/ {{
      proxy_pass http://127.0.0.1:{upstream}/;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_request_buffering off;
      proxy_read_timeout 1h;
      client_max_body_size 0;
    }}
  }}
  map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
}}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        miss("nginx", "a program of the system")
    monkeypatch.setattr(pins, "_pins", {})
    port = free_port()
    options = ("--proxy", "127.0.0.1", "--prefix", "/lab")
    lab = Lab(tmp_path, f"https://127.0.0.1:{port}/lab", options, "127.0.0.1")
    (tmp_path / "nginx.pem").write_text(make_certificate(["127.0.0.1"], datetime.now(UTC)))
    text = CONFIG.format(folder=tmp_path, port=port, upstream=lab.port)
    (tmp_path / "nginx.conf").write_text(text)
    proxy = subprocess.Popen([str(nginx), "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)])
    lab.start()
    yield lab
    lab.end()
    proxy.terminate()
    proxy.wait(PROCESS_SECONDS_MAX)


def request(
    lab: Lab, method: str, path: str, body: object = None
) -> tuple[int, http.client.HTTPMessage]:
    """Send a request to the proxy, with a forged address; return the status and the headers."""
    host = lab.url.split("/")[2]
    headers = {"X-Forwarded-For": "1.2.3.4", "Content-Type": "application/json"}
    with closing(http.client.HTTPSConnection(host, context=unverified_context())) as connection:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        with connection.getresponse() as answer:
            answer.read()
            return answer.status, answer.headers


def wait_for_state(client: Client, experiment: int, state: str) -> None:
    wait_until(lambda: client.experiment(experiment).state == state, 60, state)


@pytest.mark.nightly
def test_lab_works_behind_nginx_below_a_prefix(lab: Lab, tmp_path: Path) -> None:
    pin = read_pin(tmp_path / "nginx.pem")
    code = lab.command_line("server", "code", "--data", str(tmp_path / "data"))
    found = re.search(r"detcloud login (\S+) --code (\S+)", code)
    assert found is not None
    assert found[1] == lab.url
    lab.command_line("login", found[1], "--pin", pin, "--code", found[2])
    lab.start_agent(pin)
    with lab.client(pin) as client:
        # The upload of the code, the agent's requests and the trial's reports pass the proxy.
        made = client.create_experiment(config(0.0, 2, trials=1), model_dir(tmp_path / "model"))
        wait_for_state(client, made.id, "COMPLETED")
    # A tunnel passes the proxy as a WebSocket.
    lab.command_line("command", "run", "--detach", "sleep", "300")
    wait_until(lambda: "running" in lab.command_line("command", "list"), 60, "the command")
    assert "through nginx" in lab.command_line("ssh", "2", "echo", "through", "nginx")


@pytest.mark.nightly
def test_page_and_cookies_are_below_the_prefix(lab: Lab, tmp_path: Path) -> None:
    status, headers = request(lab, "GET", "/lab/")
    assert (status, headers["Location"]) == (307, "/lab/ui/")
    assert request(lab, "GET", "/lab/ui/")[0] == 200
    token = (tmp_path / "data/token").read_text().strip()
    status, headers = request(lab, "POST", "/lab/api/v1/sessions", {"token": token})
    assert status == 201
    cookie = headers["Set-Cookie"]
    assert "Path=/lab/" in cookie
    # The name of a loopback host needs no TLS, so the cookie has no prefix in its name.
    assert cookie.startswith("detcloud-")
