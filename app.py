"""CDK app with the stacks of the cluster file in `-c cluster=<file>`, or of both default files.

With `-c endpoint=<file>` it has the endpoint's stack only.
"""

import sys
from pathlib import Path

from aws_cdk import App

from config.cluster_files import DEFAULT_CLUSTER_FILES
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.endpoint import Endpoint
from config.reading.endpoint_file import GIVEN, load_endpoint
from config.reading.loader import load_cluster
from stacks.cluster_stacks import add_checks, add_stacks, oversized, remove_refused
from stacks.endpoint_stack import add_endpoint_stack
from stacks.remaining_costs import remaining_costs
from tools.kubernetes.charts import bring_missing

NEEDS_TEMPLATES = "aws:cdk:bundling-stacks"
"""Context that the command line fills for synth, diff and deploy, and leaves empty for list and destroy."""


def main() -> None:
    app = App()
    context = app.node.try_get_context
    endpoint: Endpoint | None = None
    clusters: list[AnyCluster] = []
    try:
        if endpoint_file := context("endpoint"):
            endpoint = load_endpoint(Path(endpoint_file), {key: context(key) for key in GIVEN})
        elif cluster_file := context("cluster"):
            clusters = [load_cluster(Path(cluster_file))]
        else:
            clusters = [load_cluster(file) for file in DEFAULT_CLUSTER_FILES.values()]
    except ValueError as error:
        sys.exit(str(error))
    if endpoint:
        add_endpoint_stack(app, endpoint)
    for cluster in clusters:
        # At every command: the app cannot find out which command runs, and destroy shows no annotations.
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
