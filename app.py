"""The CDK app: what `-c cluster=<file>` describes, or both default files, so that each deploys as typed."""

from __future__ import annotations

import sys
from pathlib import Path

from aws_cdk import App

from config.loader import load_cluster
from stacks.cluster_stacks import add_checks, add_stacks
from stacks.remaining_costs import remaining_costs
from stacks.template_size import oversized

DEFAULT_CLUSTERS = ("clusters/slurm.yaml", "clusters/eks.yaml")


def main() -> None:
    app = App()
    named = app.node.try_get_context("cluster")
    try:
        clusters = [load_cluster(Path(file)) for file in ([named] if named else DEFAULT_CLUSTERS)]
    except ValueError as error:
        sys.exit(str(error))
    for cluster in clusters:
        # At every command, because the command line shows no app which one it is, nor annotations at destroy.
        costs = ", ".join(remaining_costs(cluster))
        print(f"{cluster.name}: once deployed, billed until `make teardown`: {costs}", file=sys.stderr)
        add_stacks(app, cluster)
    add_checks(app)
    if problems := oversized(Path(app.synth().directory)):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
