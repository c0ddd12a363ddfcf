"""HTTP proxy of the cluster file, for sessions, jobs, services, container runtimes and apt on this node."""

from collections.abc import Mapping

from node_setup.docker import OURS
from node_setup.node import Node

SESSIONS = "/etc/environment"
"""File that PAM reads at each login, also of ssh."""
LOGIN_SHELLS = "/etc/profile.d/node-setup-proxy.sh"
"""File for shells of Session Manager, which opens no PAM session."""
SERVICES = "/etc/systemd/system.conf.d/50-node-setup-proxy.conf"
APT = "/etc/apt/apt.conf.d/95node-setup-proxy"
BEGIN = "# BEGIN node-setup: proxy"
END = "# END node-setup: proxy"
SECONDS_TO_START = 120


def apply(node: Node) -> None:
    """Write the proxy into the files of the system, or remove it; restart Docker if it has no containers.

    Services that already run, such as HyperPod's agents, use the proxy after their next start.
    """
    variables = node.settings.proxy
    _bring_sessions(node, variables)
    if not variables:
        changed = node.host.path(SERVICES).exists()
        for path in (LOGIN_SHELLS, SERVICES, APT):
            node.remove(path)
    else:
        exports = "".join(f"export {name}='{value}'\n" for name, value in sorted(variables.items()))
        node.install(LOGIN_SHELLS, f"# Made by node-setup.\n{exports}")
        url = variables["http_proxy"]
        node.install(APT, f'Acquire::http::Proxy "{url}";\nAcquire::https::Proxy "{url}";\n')
        values = " ".join(f'"{name}={value}"' for name, value in sorted(variables.items()))
        changed = node.install(SERVICES, f"[Manager]\nDefaultEnvironment={values}\n")
    if changed:
        # systemd reads the file only when it starts itself again; services continue.
        node.host.run("systemctl", "daemon-reexec", timeout_seconds=SECONDS_TO_START)
        _restart_docker(node)


def without_block(text: str) -> str:
    """Return a text without the lines between our marks."""
    kept: list[str] = []
    is_ours = False
    for line in text.splitlines():
        if line in (BEGIN, END):
            is_ours = line == BEGIN
        elif not is_ours:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def _bring_sessions(node: Node, variables: Mapping[str, str]) -> None:
    """Keep the other lines of the file, which belong to the image and to administrators."""
    file = node.host.path(SESSIONS)
    before = file.read_text() if file.is_file() else ""
    lines = [f"{name}={value}" for name, value in sorted(variables.items())]
    block = "\n".join([BEGIN, *lines, END]) + "\n" if lines else ""
    after = without_block(before) + block
    if after != before:
        node.install(SESSIONS, after)


def _restart_docker(node: Node) -> None:
    """Restart Docker and containerd, which pull images, unless containers run."""
    enabled = node.host.try_run("systemctl", "is-enabled", "docker.service")
    if enabled.output.strip() not in ("enabled", "static"):
        return
    running = set(node.host.try_run("docker", "ps", "--format", "{{.Names}}").output.split())
    if running - OURS:
        node.warn(
            "Docker pulls images past the proxy until it is restarted; containers run: "
            f"{', '.join(sorted(running - OURS))}. Stop them, then `sudo systemctl restart containerd docker`"
        )
        return
    for service in ("containerd.service", "docker.service"):
        node.host.run("systemctl", "try-restart", service, timeout_seconds=SECONDS_TO_START)
