"""Verify Slurm's accounting, which the platform sets up before slurmctld's first start."""

import re

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import configuration, why_controller_is_down

SECONDS_FOR_REGISTRATION = 300
"""Time limit. slurmctld tries again every few minutes if slurmdbd was late."""
SLURMDBD = (
    "see `systemctl status slurmdbd` and its log on the controller; with a database on RDS, also that it is "
    "available and its security group lets the nodes in"
)


def verify(node: Node) -> None:
    """Check that jobs are recorded in the database that the cluster file names.

    Raises:
        SetupError: if they are not.
    """
    config = configuration(node.host)
    kind = config.get("AccountingStorageType", "")
    if kind != "accounting_storage/slurmdbd":
        raise SetupError(
            f"jobs are not recorded: AccountingStorageType is {kind or 'not set'}, expected "
            "accounting_storage/slurmdbd",
            "HyperPod sets accounting up on the controller; do not add it to a slurmctld that has run: "
            "replace the controller, and look in its log for why slurmdbd was not set up",
        )
    name = config.get("ClusterName", "")
    try:
        node.host.wait_for(
            lambda: _registered(node, name),
            timeout_seconds=SECONDS_FOR_REGISTRATION,
            what=f"cluster {name} is not registered with Slurm's accounting",
            remedy=SLURMDBD,
        )
    except SetupError as error:
        raise (why_controller_is_down(node.host) or error) from None
    _verify_place(node)


def _registered(node: Node, name: str) -> bool:
    """Return whether slurmdbd has this cluster and its controller; raise SetupError if not."""
    shown = node.host.run(
        "sacctmgr",
        "--parsable2",
        "--noheader",
        "show",
        "cluster",
        "format=cluster,controlhost",
        remedy=SLURMDBD,
    )
    # Slurm keeps cluster names in lower case.
    clusters = dict(line.split("|")[:2] for line in shown.splitlines() if "|" in line)
    if name.lower() not in clusters:
        raise SetupError(f"registered clusters: {', '.join(clusters) or 'none'}", "")
    if not clusters[name.lower()]:
        raise SetupError("slurmctld has not connected to slurmdbd", "")
    return True


def _verify_place(node: Node) -> None:
    """Compare slurmdbd's database with the cluster file's."""
    shown = node.host.run("sacctmgr", "show", "configuration", remedy=SLURMDBD)
    found = re.search(r"^StorageHost\s*=(.*)", shown, re.MULTILINE)
    host = found[1].strip() if found else ""
    is_local = host in ("localhost", "127.0.0.1", "::1", node.facts.host_name, node.facts.address)
    if node.settings.external_accounting and (is_local or not host):
        raise SetupError(
            "the cluster file puts the accounting on RDS, but slurmdbd keeps it on "
            f"{host or 'an unknown host'}, where it is lost with this node",
            "`make deploy` attaches it; then `make apply-lifecycle`. If it stays so, see `aws sagemaker "
            "describe-cluster`: HyperPod's images of before September 2026 cannot use one",
        )
    if not node.settings.external_accounting and not is_local:
        node.warn(
            f"slurmdbd keeps the accounting on {host}, and the cluster file names no accounting_database"
        )
