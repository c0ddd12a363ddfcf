"""CDK app with the stacks of clusters, or of an endpoint.

`-c cluster=<file>` selects a cluster file, and `-c endpoint=<file>` an endpoint file. By default, the app has
the stacks of both default clusters, so that either can be deployed by the names of its stacks.
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
from stacks.assembly_checks import oversized, remove_refused
from stacks.cluster_stacks import add_checks, add_stacks
from stacks.endpoint_stack import add_endpoint_stack
from stacks.remaining_costs import remaining_costs
from tools.kubernetes.charts import bring_missing

NEEDS_TEMPLATES = "aws:cdk:bundling-stacks"
"""Context that the command line sets for synth, diff and deploy, and leaves empty for list and destroy."""


def main() -> None:
    """Synthesize the app; invalid files and templates that are too large end it with a message."""
    app = App()
    context = app.node.try_get_context
    endpoint: Endpoint | None = None
    clusters: list[AnyCluster] = []
    try:
        if context("endpoint"):
            endpoint = load_endpoint(
                Path(context("endpoint")), {key: context(key) for key in GIVEN}
            )
        else:
            files = [context("cluster")] if context("cluster") else DEFAULT_CLUSTER_FILES.values()
            clusters = [load_cluster(Path(file)) for file in files]
    except ValueError as error:
        sys.exit(str(error))
    if endpoint:
        add_endpoint_stack(app, endpoint)
    for cluster in clusters:
        # Printed at every command: the command is not known here, and `cdk destroy` shows no annotations.
        costs = ", ".join(remaining_costs(cluster))
        print(
            f"{cluster.name}: once deployed, billed until `make teardown`: {costs}", file=sys.stderr
        )
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
