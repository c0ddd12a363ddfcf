"""The CDK app: what `-c cluster=<file>` describes, or both default files, so that each deploys as typed.

With `-c endpoint=<file>` it is the endpoint alone.
"""

import sys
from pathlib import Path

from aws_cdk import App

from config.eks_cluster import EksCluster
from config.reading.endpoint_file import GIVEN, load_endpoint
from config.reading.loader import load_cluster
from stacks.assembly_checks import oversized, remove_refused
from stacks.cluster_stacks import add_checks, add_stacks
from stacks.endpoint_stack import add_endpoint_stack
from stacks.remaining_costs import remaining_costs
from tools.kubernetes.charts import bring_missing

NEEDS_TEMPLATES = "aws:cdk:bundling-stacks"
"""Context that the command line fills for synth, diff and deploy, and leaves empty for list and destroy."""
DEFAULT_CLUSTERS = ("clusters/slurm.yaml", "clusters/eks.yaml")


def main() -> None:
    app = App()
    context = app.node.try_get_context
    endpoint, cluster_files = None, [context("cluster")] if context("cluster") else DEFAULT_CLUSTERS
    try:
        if file := context("endpoint"):
            endpoint = load_endpoint(Path(file), {key: context(key) for key in GIVEN})
        clusters = [] if endpoint else [load_cluster(Path(file)) for file in cluster_files]
    except ValueError as error:
        sys.exit(str(error))
    if endpoint:
        add_endpoint_stack(app, endpoint)
    for cluster in clusters:
        # At every command, because the command line shows no app which one it is, nor annotations at destroy.
        costs = ", ".join(remaining_costs(cluster))
        print(f"{cluster.name}: once deployed, billed until `make teardown`: {costs}", file=sys.stderr)
        if isinstance(cluster, EksCluster) and context(NEEDS_TEMPLATES):
            bring_missing(cluster)
        add_stacks(app, cluster)
    add_checks(app)
    folder = Path(app.synth().directory)
    remove_refused(folder)
    if problems := oversized(folder):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
