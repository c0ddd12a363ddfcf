"""Instance credentials for root alone."""

from node_setup.failure import SetupError
from node_setup.node import Node

SCRIPT = "/usr/local/sbin/block-instance-credentials"
UNIT = "block-instance-credentials.service"
# curl's statuses for a refusal and for no answer. Both prove that the rules work.
CURL_COULD_NOT_CONNECT = 7
CURL_TIMED_OUT = 28


def block(node: Node) -> None:
    """Install the rules as a service, so that they apply before the network starts at every boot."""
    changed = node.install(SCRIPT, node.template("block_instance_credentials.sh"), mode=0o755)
    changed |= node.install(f"/etc/systemd/system/{UNIT}", node.template(UNIT))
    if changed:
        node.host.run("systemctl", "daemon-reload")
    # Always restart: flushed rules come back, and existing ones stay.
    node.host.run("systemctl", "enable", "--quiet", UNIT)
    node.host.run("systemctl", "restart", UNIT)
    # Through a proxy the answer would be another machine's.
    probe = node.host.try_run(
        "runuser",
        "--user",
        "nobody",
        "--",
        "curl",
        "--silent",
        "--output",
        "/dev/null",
        "--noproxy",
        "*",
        "--max-time",
        "5",
        "http://169.254.169.254/",
    )
    if probe.status not in (CURL_COULD_NOT_CONNECT, CURL_TIMED_OUT):
        raise SetupError(
            f"user nobody must not reach the instance's credentials at 169.254.169.254: curl ended with "
            f"{probe.status}, not {CURL_COULD_NOT_CONNECT} (refused) or {CURL_TIMED_OUT} (no answer)",
            f"see `systemctl status {UNIT}` and `iptables --list OUTPUT --verbose`",
        )
