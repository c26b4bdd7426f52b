"""The proxy and the authorities of containers, which are those of the agent."""

from pathlib import Path

from detcloud.agent.assignment.environment import CONTAINER_AUTHORITIES, container_environment
from detcloud.agent.docker.container import ContainerRules, container_body
from detcloud.shared.certificates import BUNDLE_VARIABLES
from tests.unit.agent.docker.test_agent_docker_container import assignment


def test_a_container_has_the_proxy_and_the_authorities_of_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "trusted-authorities.pem"
    file.write_text("PEM")
    rules = ContainerRules(tmp_path, "node", 1000, 1000, authorities=file)
    mounts = container_body(assignment(tmp_path), rules, lambda _: -1)["HostConfig"]["Mounts"]
    (mount,) = (one for one in mounts if one["Target"] == CONTAINER_AUTHORITIES)
    assert (mount["Source"], mount["ReadOnly"]) == (str(file), True)
    machine = {"HTTPS_PROXY": "http://proxy:1", "SSL_CERT_FILE": "/of/the/machine"}
    base = container_environment(2, machine, has_authorities=True)
    environment = assignment(tmp_path).environment(base)
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "http://proxy:1"
    assert "169.254.169.254" in environment["NO_PROXY"].split(",")
    assert {environment[name] for name in BUNDLE_VARIABLES} == {CONTAINER_AUTHORITIES}
    # Without a file of the agent, the image's own authorities stay.
    assert not set(BUNDLE_VARIABLES) & set(container_environment(2, machine))
