"""Show what a deployment would change, and warn if it would delete data or the cluster.

``python -m tools.stacks.diff --cluster FILE`` shows `cdk diff` and compares the deployed templates with
cdk.out; ``--against FOLDER`` compares with templates of an earlier synthesis, and ``--old FILE --new FILE``
compares two templates, both without AWS. Exit status 1 when something that holds
data, or the cluster, would be replaced or deleted.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import boto3

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import construct_ids, stack_names, wanted_stacks
from manifests.charts import chart_folder
from tools.aws_session import aws_client, open_session, require_credentials
from tools.command_line import cluster_parser, run_command
from tools.kubernetes.charts import HYPERPOD, bring_missing
from tools.stacks.replacements import Loss, Template, exports_of, find_losses, imported_exports
from tools.stacks.service_limits import CLUSTER, CONTROL_PLANE, describe_notice, find_notices
from tools.stacks.stack_contents import deployed_template

ASSEMBLY = Path("cdk.out")
CDK = Path("node_modules/aws-cdk/bin/cdk")
"""The pinned version; npx would download another if none is installed."""
PRECIOUS = {
    "AWS::SageMaker::Cluster": ("the cluster", "all its nodes are terminated and every job ends"),
    CONTROL_PLANE: ("the control plane", "all that is installed on it is gone, and every job ends"),
    "AWS::Grafana::Workspace": ("the Grafana workspace", "people's dashboards are gone"),
    "AWS::FSx::FileSystem": ("a file system", "the new one is empty"),
    "AWS::RDS::DBInstance": ("the accounting database", "the new one is empty"),
    "AWS::S3::Bucket": ("a bucket", "the new one is empty"),
    "AWS::KMS::Key": ("an encryption key", "what is encrypted with the old one cannot be read without it"),
    "AWS::APS::Workspace": ("the metrics workspace", "the new one is empty"),
    "AWS::SageMaker::MlflowApp": ("MLflow", "the new one has no runs"),
    "AWS::SageMaker::MlflowTrackingServer": ("MLflow", "the new one has no runs"),
    "AWS::ECR::Repository": ("the image repository", "the new one is empty"),
}
NAME_KEYS = ("ClusterName", "BucketName", "RepositoryName", "DBInstanceIdentifier", "TrackingServerName")
CONTROL_PLANE_NAME = "Name"
"""Key of AWS::EKS::Cluster; in other types the name under this key need not be unique."""


def main() -> int:
    parser = cluster_parser("Show what a deployment would change, and warn when it would destroy something.")
    parser.add_argument("--old", type=Path, help="compare this template ...")
    parser.add_argument("--new", type=Path, help="... with this one, without AWS")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="compare with the templates in this folder, one <stack>.template.json per stack, as an earlier "
        "`make synth` wrote them to cdk.out (copy it before you change the file); needs no AWS credentials",
    )
    options = parser.parse_args()
    if (options.old is None) != (options.new is None):
        raise ValueError("--old and --new belong together; give both, or neither to compare with AWS")
    cluster = load_cluster(options.cluster)
    if options.old:
        pairs = [("templates", _read(options.old), _read(options.new))]
    elif not CDK.exists():
        raise ValueError("the pinned CDK command line is not installed; run `make diff`, or `npm ci` first")
    elif options.against:
        pairs = _saved_and_new(cluster, options.cluster, options.against)
    else:
        session = open_session(region=cluster.region, profile=options.profile)
        require_credentials(session)
        profile = ["--profile", options.profile] if options.profile else []
        stacks = wanted_stacks(cluster, construct_ids(cluster))
        require_charts(cluster)
        _run_cdk("diff", *stacks, "--context", f"cluster={options.cluster}", *profile)
        pairs = deployed_and_new(cluster, session)
    if not pairs and not options.against:
        print(
            f"note: {cluster.region} has no stack of cluster {cluster.name}. If you changed `name` or "
            "`region`, the former cluster still runs and bills: `make teardown` with the former file."
        )
    losses = find_precious_losses(pairs, region=cluster.region)
    notices = [notice for stack, old, new in pairs for notice in find_notices(stack, old, new)]
    refused = find_exports_in_use(pairs, region=cluster.region)
    paragraphs = [*map(describe, losses), *map(describe_notice, notices), *refused]
    print(
        "\n".join(paragraphs) or "The cluster, file systems, database, buckets and keys survive this change."
    )
    certain = bool(refused) or any(
        [*(loss.is_certain for loss in losses), *(notice.is_certain for notice in notices)]
    )
    if paragraphs and not certain:
        print("Nothing is certain to be lost; read the notes.")
    return int(certain)


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
    if isinstance(cluster, EksCluster):
        bring_missing(cluster)
        chart_folder(HYPERPOD)


def _run_cdk(*arguments: str) -> None:
    command = ["node", str(CDK), *arguments]
    ended = subprocess.run(command)
    if ended.returncode:
        raise ValueError(f"`{' '.join(command)}` ended with status {ended.returncode}; see its message above")


def _saved_and_new(
    cluster: Cluster, cluster_file: Path, folder: Path
) -> list[tuple[str, Template, Template]]:
    """Synthesize the cluster's stacks, show what differs from the saved templates, and return both.

    Raises:
        ValueError: if the folder has the template of no stack of the cluster.
    """
    ids = construct_ids(cluster)
    saved = {stack: folder / f"{stack}.template.json" for stack in ids}
    if not any(file.is_file() for file in saved.values()):
        raise ValueError(f"{folder}: expected templates such as {ids.hyperpod}.template.json; got none")
    if folder.resolve() == ASSEMBLY.resolve():
        raise ValueError(f"{folder} is where new templates are written; give a copy of it")
    require_charts(cluster)
    _run_cdk("synth", "--quiet", "--context", f"cluster={cluster_file}")
    pairs = []
    for stack, file in saved.items():
        new = ASSEMBLY / file.name
        if stack in wanted_stacks(cluster, ids) and file.is_file():
            _run_cdk("--app", str(ASSEMBLY), "diff", "--exclusively", stack, "--template", str(file))
            pairs.append((stack, _read(file), _read(new)))
        elif file.is_file() or stack in wanted_stacks(cluster, ids):
            print(f"note: stack {stack} is {'removed from the file' if file.is_file() else 'new'}")
    return pairs


def deployed_and_new(cluster: Cluster, session: boto3.Session) -> list[tuple[str, Template, Template]]:
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
            pairs.append((name, old, _read(ASSEMBLY / files[name])))
        else:
            # It still imports values of the others.
            pairs.append((name, old, old))
            print(
                f"note: stack {name} is deployed, and the file has its section no more: it stays, and bills, "
                f"until `aws cloudformation delete-stack --stack-name {name}`, or `make teardown`."
            )
    return pairs


@dataclass(frozen=True)
class PreciousLoss:
    stack: str
    loss: Loss
    keeps_name: bool
    """Whether the replacement needs the name that the old resource still has."""

    @property
    def is_certain(self) -> bool:
        return self.loss.kind != "may be replaced"


def find_precious_losses(pairs: list[tuple[str, Template, Template]], *, region: str) -> list[PreciousLoss]:
    """Return losses that this repository cannot restore; stacks are in deployment order."""
    found = []
    changed_exports: set[str] = set()
    for stack, old, new in pairs:
        losses = find_losses(old, new, region=region, changed_exports=changed_exports)
        changed_exports |= exports_of(old, {loss.logical_id for loss in losses if loss.kind == "is replaced"})
        found += [
            PreciousLoss(stack, loss, _keeps_name(loss, new))
            for loss in losses
            if loss.resource_type in PRECIOUS
        ]
    return found


def find_exports_in_use(pairs: list[tuple[str, Template, Template]], *, region: str) -> list[str]:
    """Report replacements that CloudFormation refuses because deployed stacks import the old ids."""
    sentences = []
    for stack, old, new in pairs:
        losses = find_losses(old, new, region=region, changed_exports=set())
        changed = exports_of(old, {loss.logical_id for loss in losses if loss.kind != "may be replaced"})
        users = [
            other
            for other, template, _ in pairs
            if other != stack and imported_exports(template["Resources"]) & changed
        ]
        if users:
            command = "make destroy" if all(user.endswith("-hyperpod") for user in users) else "make teardown"
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
    what, consequence = PRECIOUS[loss.resource_type]
    on_cluster = loss.resource_type in (CLUSTER, CONTROL_PLANE)
    mark = "!!! WARNING" if precious.is_certain else "note"
    lines = [
        f"{mark}: {what} {loss.kind}: {loss.logical_id} ({loss.resource_type}) in {precious.stack}",
        f"why: {loss.reason}",
    ]
    if loss.kind != "is deleted":
        lines.append(f"then: {consequence}")
    if loss.is_kept:
        lines.append("the old one stays in the account, outside of the stack, and bills until you delete it")
    elif precious.is_certain:
        lines.append("the old one is DELETED, with what is in it")
    if precious.is_certain and precious.keeps_name:
        lines.append(
            "it keeps its name, which cannot be given to a second one: CloudFormation will refuse; "
            f"undo the change, or run `{'make destroy' if on_cluster else 'make teardown'}` first"
        )
    return "\n    ".join(lines)


if __name__ == "__main__":
    run_command(main)
