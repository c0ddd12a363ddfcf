"""Show what a deployment would change, and warn if it would delete data or the cluster.

``python -m tools.stacks.diff --cluster FILE`` shows `cdk diff` and compares the deployed templates with
cdk.out. Two options compare without AWS:

* ``--against FOLDER`` compares with the templates of an earlier synthesis.
* ``--old FILE --new FILE`` compares two templates.

The exit status is 1 if the cluster or a resource with data would be replaced or deleted, or if the update
would be refused.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import construct_ids, stack_names, wanted_stacks
from manifests.charts import chart_folder
from tools.aws_session import aws_client, explain, open_session, require_credentials
from tools.command_line import cluster_parser, run_command
from tools.json_output import add_json_option, publish
from tools.kubernetes.charts import HYPERPOD, bring_missing
from tools.stacks.moves import deployed_places, describe_moves, template_places
from tools.stacks.replacements import (
    FSX,
    MARIADB,
    Loss,
    Template,
    exports_of,
    find_losses,
    imported_exports,
)
from tools.stacks.service_limits import CLUSTER, CONTROL_PLANE, describe_notice, find_notices
from tools.stacks.stack_contents import deployed_template

LOSES_DATA = 1
"""Exit status if the update loses data or is refused; 2 is for wrong usage."""
ASSEMBLY = Path("cdk.out")
"""Folder of the synthesized templates."""
CDK = Path("node_modules/aws-cdk/bin/cdk")
"""Pinned version of the CDK's command line; npx would download another if none is installed."""


class Precious(NamedTuple):
    """Kind of resource that this repository cannot restore."""

    title: str
    """Name of the resource in a warning."""
    consequence: str
    """Consequence of a replacement."""


EMPTY = "the new one is empty"
PRECIOUS = {
    CLUSTER: Precious("the cluster", "all its nodes are terminated and every job ends"),
    CONTROL_PLANE: Precious(
        "the control plane", "all that is installed on it is gone, and every job ends"
    ),
    "AWS::Grafana::Workspace": Precious("the Grafana workspace", "people's dashboards are gone"),
    FSX: Precious("a file system", EMPTY),
    MARIADB: Precious("the accounting database", EMPTY),
    "AWS::S3::Bucket": Precious("a bucket", EMPTY),
    "AWS::KMS::Key": Precious(
        "an encryption key", "what is encrypted with the old one cannot be read without it"
    ),
    "AWS::APS::Workspace": Precious("the metrics workspace", EMPTY),
    "AWS::SageMaker::MlflowApp": Precious("MLflow", "the new one has no runs"),
    "AWS::SageMaker::MlflowTrackingServer": Precious("MLflow", "the new one has no runs"),
    "AWS::ECR::Repository": Precious("the image repository", EMPTY),
}
NAME_KEYS = (
    "ClusterName",
    "BucketName",
    "RepositoryName",
    "DBInstanceIdentifier",
    "TrackingServerName",
)
"""Properties with names that only one resource can have."""
CONTROL_PLANE_NAME = "Name"
"""Property of AWS::EKS::Cluster with such a name; in other types the name under this key need not be
unique."""


class Pair(NamedTuple):
    """Two templates of one stack."""

    stack: str
    old: Template
    new: Template


def main() -> int:
    parser = cluster_parser(
        "Show what a deployment would change, and warn when it would destroy something."
    )
    parser.add_argument("--old", type=Path, help="template to compare with --new, without AWS")
    parser.add_argument("--new", type=Path, help="template to compare with --old, without AWS")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="compare with the templates in this folder, one <stack>.template.json per stack, as an earlier "
        "`make synth` wrote them to cdk.out (copy it before you change the file); needs no AWS credentials",
    )
    add_json_option(parser)
    options = parser.parse_args()
    if (options.old is None) != (options.new is None):
        raise ValueError(
            "--old and --new belong together; give both, or neither to compare with AWS"
        )
    cluster = load_cluster(options.cluster)
    if options.old:
        pairs = [Pair("templates", _read(options.old), _read(options.new))]
        moves = _saved_moves(cluster, pairs, options.old.parent, options.new.parent)
    elif not CDK.exists():
        raise ValueError(
            "the pinned CDK command line is not installed; run `make diff`, or `npm ci` first"
        )
    elif options.against:
        pairs = _saved_and_new(cluster, options.cluster, options.against)
        moves = _saved_moves(cluster, pairs, options.against, ASSEMBLY)
    else:
        session = open_session(region=cluster.region, profile=options.profile)
        require_credentials(session)
        pairs = _diff_with_aws(cluster, session, options.cluster, options.profile)
        moves = deployed_moves(cluster, session, pairs)
    if not pairs and not options.against:
        print(
            f"note: {cluster.region} has no stack of cluster {cluster.name}. If you changed `name` or "
            "`region`, the former cluster still runs and bills: `make teardown` with the former file."
        )
    publish(cluster=cluster.name, region=cluster.region, stacks=[pair.stack for pair in pairs])
    return _report(pairs, moves, region=cluster.region)


def _diff_with_aws(
    cluster: Cluster, session: boto3.Session, cluster_file: Path, profile: str | None
) -> list[Pair]:
    """Show `cdk diff`, and return the deployed and the new templates."""
    profile_option = ["--profile", profile] if profile else []
    stacks = wanted_stacks(cluster, construct_ids(cluster))
    require_charts(cluster)
    _run_cdk("diff", *stacks, "--context", f"cluster={cluster_file}", *profile_option)
    return deployed_and_new(cluster, session)


def _report(pairs: Sequence[Pair], moves: Sequence[str], *, region: str) -> int:
    """Print the consequences of an update, and return the exit status.

    Args:
        pairs: templates of each deployed stack.
        moves: messages about moved access entries and teams, with which `make deploy` refuses the update.
        region: region of the stacks.
    """
    losses = find_precious_losses(pairs, region=region)
    notices = [notice for pair in pairs for notice in find_notices(pair.stack, pair.old, pair.new)]
    refused = find_exports_in_use(pairs, region=region)
    refused += [f"!!! WARNING: {message}" for message in moves]
    publish(
        losses=[_published(loss) for loss in losses],
        notices=[asdict(notice) for notice in notices],
        refused=refused,
    )
    paragraphs = [*map(describe, losses), *map(describe_notice, notices), *refused]
    if not paragraphs:
        print("The cluster, file systems, database, buckets and keys survive this change.")
        return 0
    print("\n".join(paragraphs))
    is_certain = (
        bool(refused)
        or any(loss.is_certain for loss in losses)
        or any(notice.is_certain for notice in notices)
    )
    if is_certain:
        return LOSES_DATA
    print("Nothing is certain to be lost; read the notes.")
    return 0


def _published(precious: "PreciousLoss") -> dict[str, Any]:
    """Return a loss for ``--json``."""
    loss = precious.loss
    return {
        "stack": precious.stack,
        "logical_id": loss.logical_id,
        "type": loss.resource_type,
        "kind": loss.kind,
        "reason": loss.reason,
        "is_certain": precious.is_certain,
        "is_kept": loss.is_kept,
    }


def _read(path: Path) -> Template:
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; give a template that `cdk synth` wrote, such as in {ASSEMBLY}/"
        )
    return json.loads(path.read_text())


def require_charts(cluster: Cluster) -> None:
    """Fetch missing charts before the CDK runs, which reports a missing chart in several lines.

    Raises:
        ValueError: if HyperPod's chart is still missing.
    """
    if isinstance(cluster, EksCluster) and not cluster.kubernetes.existing:
        bring_missing(cluster)
        chart_folder(HYPERPOD)


def _run_cdk(*arguments: str) -> None:
    command = ["node", str(CDK), *arguments]
    ended = subprocess.run(command)
    if ended.returncode:
        raise ValueError(
            f"`{' '.join(command)}` ended with status {ended.returncode}; see its message above"
        )


def _saved_and_new(cluster: Cluster, cluster_file: Path, folder: Path) -> list[Pair]:
    """Synthesize the cluster's stacks, show what differs from the saved templates, and return both.

    Raises:
        ValueError: if the folder has the template of no stack of the cluster.
    """
    ids = construct_ids(cluster)
    saved = {stack: folder / f"{stack}.template.json" for stack in ids}
    if not any(file.is_file() for file in saved.values()):
        raise ValueError(
            f"{folder}: expected templates such as {ids.hyperpod}.template.json; got none"
        )
    if folder.resolve() == ASSEMBLY.resolve():
        raise ValueError(f"{folder} is where new templates are written; give a copy of it")
    require_charts(cluster)
    _run_cdk("synth", "--quiet", "--context", f"cluster={cluster_file}")
    wanted = wanted_stacks(cluster, ids)
    pairs = []
    for stack, file in saved.items():
        if stack in wanted and file.is_file():
            _run_cdk(
                "--app", str(ASSEMBLY), "diff", "--exclusively", stack, "--template", str(file)
            )
            pairs.append(Pair(stack, _read(file), _read(ASSEMBLY / file.name)))
        elif stack in wanted:
            print(f"note: stack {stack} is new")
        elif file.is_file():
            print(f"note: stack {stack} is removed from the file")
    return pairs


def deployed_and_new(cluster: Cluster, session: boto3.Session) -> list[Pair]:
    """Return the templates of each deployed stack; twice the deployed one if the file lacks its section."""
    manifest = json.loads((ASSEMBLY / "manifest.json").read_text())
    files = {
        artifact["properties"].get("stackName", artifact_id): artifact["properties"]["templateFile"]
        for artifact_id, artifact in manifest["artifacts"].items()
        if artifact["type"] == "aws:cloudformation:stack"
    }
    cloudformation = aws_client(session, "cloudformation")
    pairs = []
    for name in stack_names(cluster):
        old = deployed_template(cloudformation, name)
        if old is None:
            continue
        if name in files:
            pairs.append(Pair(name, old, _read(ASSEMBLY / files[name])))
        else:
            # It still imports values of the others.
            pairs.append(Pair(name, old, old))
            print(
                f"note: stack {name} is deployed, but the file no longer has its section. It stays and bills "
                f"until `aws cloudformation delete-stack --stack-name {name}` or `make teardown`."
            )
    return pairs


def deployed_moves(cluster: Cluster, session: boto3.Session, pairs: Sequence[Pair]) -> list[str]:
    """Return messages about access entries and teams that an update of the deployed stack would move.

    A deployed stack that cannot be read may be updated all the same, so the list is then empty.
    """
    name = stack_names(cluster).hyperpod
    news = [pair.new for pair in pairs if pair.stack == name]
    if not isinstance(cluster, EksCluster) or not news:
        return []
    try:
        old = deployed_places(aws_client(session, "cloudformation"), name)
    except (BotoCoreError, ClientError) as error:
        print(
            f"note: stack {name} cannot be read, so it is not checked whether access entries or teams move: "
            f"{explain(error)}",
            file=sys.stderr,
        )
        return []
    return list(describe_moves(old, template_places(news[0], ASSEMBLY), cluster))


def _saved_moves(
    cluster: Cluster, pairs: Sequence[Pair], old_folder: Path, new_folder: Path
) -> list[str]:
    """Return messages about access entries and teams that differ in their places in two folders."""
    if not isinstance(cluster, EksCluster):
        return []
    return [
        message
        for pair in pairs
        for message in describe_moves(
            template_places(pair.old, old_folder), template_places(pair.new, new_folder), cluster
        )
    ]


@dataclass(frozen=True)
class PreciousLoss:
    stack: str
    loss: Loss
    keeps_name: bool
    """Whether the replacement needs the name that the old resource still has."""

    @property
    def is_certain(self) -> bool:
        return self.loss.kind != "may be replaced"


def find_precious_losses(pairs: Sequence[Pair], *, region: str) -> list[PreciousLoss]:
    """Return losses that this repository cannot restore; stacks are in deployment order."""
    found = []
    changed_exports: set[str] = set()
    for stack, old, new in pairs:
        losses = find_losses(old, new, region=region, changed_exports=changed_exports)
        changed_exports |= exports_of(
            old, {loss.logical_id for loss in losses if loss.kind == "is replaced"}
        )
        found += [
            PreciousLoss(stack, loss, _keeps_name(loss, new))
            for loss in losses
            if loss.resource_type in PRECIOUS
        ]
    return found


def find_exports_in_use(pairs: Sequence[Pair], *, region: str) -> list[str]:
    """Report replacements that CloudFormation refuses because deployed stacks import the old ids."""
    sentences = []
    for stack, old, new in pairs:
        losses = find_losses(old, new, region=region, changed_exports=set())
        changed = exports_of(
            old, {loss.logical_id for loss in losses if loss.kind != "may be replaced"}
        )
        users = [
            other.stack
            for other in pairs
            if other.stack != stack and imported_exports(other.old["Resources"]) & changed
        ]
        if users:
            only_cluster = all(user.endswith("-hyperpod") for user in users)
            command = "make destroy" if only_cluster else "make teardown"
            sentences.append(
                f"!!! WARNING: CloudFormation will refuse to update {stack}: {', '.join(users)} use what is "
                f"replaced; run `{command}` first"
            )
    return sentences


def _keeps_name(loss: Loss, new: Template) -> bool:
    before = loss.old.get("Properties", {})
    after = new["Resources"].get(loss.logical_id, {}).get("Properties", {})
    names = (CONTROL_PLANE_NAME,) if loss.resource_type == CONTROL_PLANE else NAME_KEYS
    return any(name in after and after[name] == before.get(name) for name in names)


def describe(precious: PreciousLoss) -> str:
    """Describe the loss, its cause and its consequence in a paragraph."""
    loss = precious.loss
    title, consequence = PRECIOUS[loss.resource_type]
    mark = "!!! WARNING" if precious.is_certain else "note"
    lines = [
        f"{mark}: {title} {loss.kind}: {loss.logical_id} ({loss.resource_type}) in {precious.stack}",
        f"why: {loss.reason}",
    ]
    if loss.kind != "is deleted":
        lines.append(f"then: {consequence}")
    if loss.is_kept:
        lines.append(
            "the old one stays in the account, outside of the stack, and bills until you delete it"
        )
    elif precious.is_certain:
        lines.append("the old one is DELETED, with what is in it")
    if precious.is_certain and precious.keeps_name:
        is_cluster = loss.resource_type in (CLUSTER, CONTROL_PLANE)
        command = "make destroy" if is_cluster else "make teardown"
        lines.append(
            "it keeps its name, which cannot be given to a second one: CloudFormation will refuse; "
            f"undo the change, or run `{command}` first"
        )
    return "\n    ".join(lines)


if __name__ == "__main__":
    run_command(main)
