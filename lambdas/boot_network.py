"""The part of a boot script that sets the machine's proxy and authorities."""

from collections.abc import Mapping
from typing import Any

from detcloud.shared.proxy_addresses import complete_exceptions, find_exceptions_problem
from lambdas.boot_script import boot_part
from provisioner.clouds.provider import ConfigurationError

_PROXIES = ("http_proxy", "https_proxy")


def network_commands(section: Mapping[str, Any]) -> str:
    """Return the shell commands for the `proxy` and `ca_certificates` of a pool's settings.

    Return "" if the settings have neither. The commands contain the login of the proxy, if any.
    Raises ConfigurationError for a value that is unsafe in a boot script. The message does not
    quote the value.

    Args:
        section: the cloud's own settings of the pool.
    """
    proxy, certificates = section.get("proxy") or {}, section.get("ca_certificates") or ""
    variables = _proxy_variables(proxy)
    commands = []
    if certificates:
        _refuse_unsafe("provider.ca_certificates", certificates.replace("\n", ""), "'\\")
        commands.append(_with_input("trust_authorities", certificates.rstrip("\n")))
    if variables:
        lines = (f"{name}='{value}'" for name, value in variables.items())
        commands.append(_with_input("use_proxy", "\n".join(lines)))
    if not commands:
        return ""
    return "\n".join((boot_part("network.sh"), *commands, "give_environment"))


def _proxy_variables(proxy: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a section `proxy`, in both cases. {} without a proxy."""
    found = {name: proxy[name] for name in _PROXIES if proxy.get(name)}
    if not found:
        return {}
    for name, address in found.items():
        _refuse_unsafe(f"provider.proxy.{name}", address, "'\\")
    exceptions = proxy.get("no_proxy") or ""
    if problem := find_exceptions_problem(exceptions):
        raise ConfigurationError(f"provider.proxy.no_proxy has an entry that is wrong: {problem}")
    found["no_proxy"] = complete_exceptions(exceptions)
    return {**found, **{name.upper(): value for name, value in found.items()}}


def _refuse_unsafe(place: str, value: str, characters: str) -> None:
    """Raise ConfigurationError for a value with any of `characters` or unprintable text."""
    if not (value.isascii() and value.isprintable()) or any(one in value for one in characters):
        raise ConfigurationError(f"{place} cannot be used in a boot script: write it again")


def _with_input(command: str, text: str) -> str:
    """Return a command that reads `text`. No line of `text` is INPUT."""
    return f"{command} <<'INPUT'\n{text}\nINPUT"
