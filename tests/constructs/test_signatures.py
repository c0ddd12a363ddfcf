"""Constructs are called as the CDK's own: ``(scope, construct_id, *, ...)``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aws_cdk import App, RemovalPolicy, Stack
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns

from config.cluster import Budget
from config.observability import Mlflow, Observability
from config.storage import HomeFileSystem as HomeSettings
from config.storage import LustreFileSystem as LustreSettings
from constructs import Construct
from constructs.monitoring.alarms import NodeEvents, SpaceAlarms
from constructs.monitoring.alert_topic import AlertTopic
from constructs.monitoring.cost_budget import CostBudget
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.nodes.shell_document import ShellDocument
from constructs.storage.file_systems import DataAssociation, HomeFileSystem, LustreFileSystem
from constructs.storage.hashed_upload import HashedUpload, UploadedFiles, UploadTarget
from constructs.storage.image_repository import ImageRepository
from constructs.storage.private_bucket import access_log_bucket, private_bucket
from constructs.vpc.flow_log import FlowLog
from constructs.vpc.network import Network
from tests.stacks.base_templates import cluster_of
from tests.stacks.synthesized import REPOSITORY, new_app

FOLDER = REPOSITORY / "constructs"
KEYWORDS = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


def modules() -> Iterator[ModuleType]:
    for path in sorted(FOLDER.rglob("*.py")):
        yield importlib.import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))


def own(module: ModuleType, is_kind: Callable[[object], bool]) -> list[Any]:
    """Return the members of a kind that the module defines itself."""
    members = inspect.getmembers(module, is_kind)
    return [member for _, member in members if member.__module__ == module.__name__]


CLASSES = [
    found
    for module in modules()
    for found in own(module, inspect.isclass)
    if issubclass(found, Construct)
]
FACTORIES = [
    found
    for module in modules()
    for found in own(module, inspect.isfunction)
    if not found.__name__.startswith("_") and "scope" in inspect.signature(found).parameters
]


def test_all_constructs_are_found() -> None:
    defines = re.compile(r"\((Construct|NestedStack)\):")
    files = [path for path in FOLDER.rglob("*.py") if defines.search(path.read_text())]
    assert {Path(str(inspect.getfile(found))) for found in CLASSES} == set(files)
    assert LustreFileSystem in CLASSES and private_bucket in FACTORIES


@pytest.mark.parametrize("found", [*CLASSES, *FACTORIES], ids=lambda found: found.__name__)
def test_scope_and_id_come_first_and_the_rest_by_name(found: Callable[..., object]) -> None:
    if inspect.isclass(found):
        # The metaclass of jsii hides the signature of the class itself.
        _, *parameters = inspect.signature(found.__init__).parameters.values()
    else:
        parameters = list(inspect.signature(found).parameters.values())
    assert [parameter.name for parameter in parameters[:2]] == ["scope", "construct_id"]
    assert parameters[1].default is inspect.Parameter.empty
    assert [parameter.name for parameter in parameters[2:] if parameter.kind not in KEYWORDS] == []


class Parts:
    """A stack, and what constructs in it refer to."""

    def __init__(self, app: App) -> None:
        self.stack = Stack(app, "Two")
        self.cluster = cluster_of()
        self.network = Network(self.stack, "Network", cluster=self.cluster)
        self.log = logs.CfnLogGroup(self.stack, "Log")
        self.access_logs = access_log_bucket(self.stack, "AccessLogs")
        self.bucket = s3.Bucket(self.stack, "Artifacts", bucket_name="artifacts")
        self.topic = sns.Topic(self.stack, "Topic")
        self.lustre = self.lustre_file_system("Lustre")

    def lustre_file_system(self, construct_id: str) -> LustreFileSystem:
        return LustreFileSystem(
            self.stack,
            construct_id,
            settings=LustreSettings(),
            log_group_name=f"/aws/fsx/{construct_id}",
            network=self.network,
            key=None,
        )


def data_association(parts: Parts, name: str) -> Construct:
    return DataAssociation(
        parts.stack,
        name,
        lustre=parts.lustre,
        path=f"/{name}",
        bucket=parts.bucket,
        key=None,
        removal=RemovalPolicy.DESTROY,
    )


def hashed_upload(parts: Parts, name: str) -> Construct:
    upload = HashedUpload(
        parts.stack,
        name,
        target=UploadTarget(parts.bucket, key=None, log=parts.log),
        prefix=name,
        files=UploadedFiles(REPOSITORY / "functions" / "nodes_ready"),
    )
    upload.point_to_current(parts.stack, f"{name}Current")
    return upload


def metrics_workspace(parts: Parts, name: str) -> Construct:
    return MetricsWorkspace(
        parts.stack,
        name,
        cluster=parts.cluster,
        log_group_name=f"/aws/vendedlogs/{name}",
        key=None,
        alerts=None,
    )


def space_alarms(parts: Parts, name: str) -> Construct:
    return SpaceAlarms(
        parts.stack, name, lustre=parts.lustre, home=None, free_percent=10, topic=parts.topic
    )


BUDGET = Budget(monthly_usd=1, email="a@example.org")
MLFLOW = Mlflow(kind="app")
ALERTS = Observability(emails=["a@example.org"])
TWICE: dict[str, Callable[[Parts, str], Construct]] = {
    "LustreFileSystem": lambda parts, name: parts.lustre_file_system(name),
    "HomeFileSystem": lambda parts, name: HomeFileSystem(
        parts.stack, name, settings=HomeSettings(), network=parts.network, key=None
    ),
    "DataAssociation": data_association,
    "private_bucket": lambda parts, name: private_bucket(
        parts.stack, name, key=None, access_logs=parts.access_logs, removal=RemovalPolicy.DESTROY
    ),
    "HashedUpload": hashed_upload,
    "ImageRepository": lambda parts, name: ImageRepository(
        parts.stack, name, repository_name=name.lower(), key=None, mirrored=()
    ),
    "FlowLog": lambda parts, name: FlowLog(
        parts.stack, name, vpc_id=parts.network.vpc.vpc_id, key=None, retention_days=30
    ),
    "AlertTopic": lambda parts, name: AlertTopic(
        parts.stack, name, name=name, settings=ALERTS, key=None
    ),
    "MetricsWorkspace": metrics_workspace,
    "ManagedMlflow": lambda parts, name: ManagedMlflow(
        parts.stack, name, name=name, settings=MLFLOW, key=None, access_logs=parts.access_logs
    ),
    "CostBudget": lambda parts, name: CostBudget(
        parts.stack, name, cluster=parts.cluster, budget=BUDGET, alerts=None
    ),
    "NodeEvents": lambda parts, name: NodeEvents(
        parts.stack, name, cluster=parts.cluster, topic=parts.topic
    ),
    "SpaceAlarms": space_alarms,
    "ShellDocument": lambda parts, name: ShellDocument(
        parts.stack, name, name=name, cluster_name="tested", key=None
    ),
}


@pytest.mark.parametrize("kind", TWICE)
def test_two_of_a_kind_in_one_stack_have_resources_and_names_of_their_own(kind: str) -> None:
    app = new_app()
    parts = Parts(app)
    for name in ("First", "Second"):
        TWICE[kind](parts, name)
    template = app.synth().get_stack_by_name("Two").template
    counts = {
        name: sum(logical_id.startswith(name) for logical_id in template["Resources"])
        for name in ("First", "Second")
    }
    assert counts["First"] == counts["Second"] > 0
    # Physical names that occur twice would fail the deployment.
    named = [
        (resource["Type"], resource["Properties"][field])
        for resource in template["Resources"].values()
        for field in ("LogGroupName", "RepositoryName", "BucketName", "Name", "AliasName")
        if isinstance(resource.get("Properties", {}).get(field), str)
    ]
    assert len(named) == len(set(named))
