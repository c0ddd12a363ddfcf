"""A file that the rules accept is not refused by the tables of a library: every type in every region."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import pytest
from aws_cdk import App, Environment, Stack

from config.facts.instance_catalogue import INSTANCE_TYPES
from config.facts.optional_features import OPTIONAL_FEATURES
from config.facts.regions import ZONE_ID_PREFIXES
from config.facts.registry import PATH, has_list_price
from config.rules.slurm import DATABASE_SIZES
from config.slurm_cluster import AccountingDatabase as DatabaseSettings
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup
from constructs.nodes.instance_group import (
    HyperPodCluster,
    instance_group,
    price_warning,
    zone_warning,
)
from constructs.storage.accounting_database import AccountingDatabase
from constructs.vpc.network import Network
from tests.stacks.studios import STUDIOS, studio_templates
from tests.stacks.synthesized import ALL_FILES, load, new_app, templates
from tools.stacks.registry_facts import registry_text, types_missing_somewhere

FILE = "clusters/slurm.yaml"
P5E = "ml.p5e.48xlarge"
PLAN = "arn:aws:sagemaker:us-east-2:123456789012:training-plan/p5e"
MAX_GROUPS = 100
"""Groups of a cluster."""
DATABASE_CLASSES = "data/schemas/extensions/aws_rds_dbinstance/dbinstanceclass_enum.json"


def cluster_in(region: str, types: list[str]) -> SlurmCluster:
    """Return a cluster with one group of each type."""
    zone = ZONE_ID_PREFIXES[region]
    network = {"vpc": "new", "availability_zone_ids": [f"{zone}-az1", f"{zone}-az2"]}
    cluster: SlurmCluster = load(FILE, region=region, network=network, accounting_database={})
    groups = [
        SlurmInstanceGroup(
            name=name.replace(".", "-"), role="worker", instance_type=name, num_instances=1
        )
        for name in types
    ]
    return cluster.model_copy(update={"instance_groups": groups})


def add_clusters(stack: Stack, cluster: SlurmCluster, network: Network) -> None:
    """Add the groups, in as many clusters as they need."""
    role = _Role("arn:aws:iam::123456789012:role/nodes")
    for index, part in enumerate(batched(cluster.instance_groups, MAX_GROUPS)):
        groups = [
            instance_group(group, network, role)  # type: ignore[arg-type]
            for group in part
        ]
        settings = cluster.model_copy(update={"instance_groups": part})
        HyperPodCluster(stack, f"Cluster{index}", settings=settings, network=network, groups=groups)


def batched(
    groups: Sequence[SlurmInstanceGroup], length: int
) -> Iterator[Sequence[SlurmInstanceGroup]]:
    for start in range(0, len(groups), length):
        yield groups[start : start + length]


class _Role:
    def __init__(self, arn: str) -> None:
        self.role_arn = arn


def database_classes(region: str) -> list[str]:
    """Return classes of our rule that cfn-lint's list lacks for MariaDB in the region, one of each family."""
    rules = json.loads((files("cfnlint") / DATABASE_CLASSES).read_text())[region]["allOf"]
    listed = {
        name
        for rule in rules
        if rule["if"]["properties"]["Engine"] == {"const": "mariadb"}
        for name in rule["then"]["properties"]["DBInstanceClass"]["enum"]
    }
    ours = [f"db.{family}.{sizes[0]}" for family, sizes in DATABASE_SIZES.items()]
    return [name for name in ours if name not in listed]


def test_the_facts_are_those_of_the_pinned_registry() -> None:
    assert PATH.read_text() == registry_text(), (
        "run `.venv/bin/python -m tools.stacks.registry_facts`, and read the difference"
    )


def test_resource_types_that_a_region_lacks_belong_to_an_optional_feature() -> None:
    stacks = [templates(file) for file in ALL_FILES] + [studio_templates(name) for name in STUDIOS]
    used = {
        resource["Type"]
        for group in stacks
        for template in group.values()
        for resource in template["Resources"].values()
    }
    assert types_missing_somewhere(used) == {feature.resource_type for feature in OPTIONAL_FEATURES}


@pytest.mark.long
def test_no_type_is_refused_in_any_region() -> None:
    """One synthesis with each instance type and each class of databases that a list lacks in a region."""
    app = new_app(FILE)
    num_unlisted = 0
    for region in ZONE_ID_PREFIXES:
        unpriced = [name for name in INSTANCE_TYPES if not has_list_price(name, region)]
        assert P5E in unpriced
        cluster = cluster_in(region, unpriced)
        stack = Stack(app, region, env=Environment(region=region))
        network = Network(stack, "Network", cluster=cluster)
        add_clusters(stack, cluster, network)
        for index, name in enumerate(database_classes(region)):
            num_unlisted += 1
            settings = DatabaseSettings(instance_class=name)
            AccountingDatabase(
                stack,
                f"Database{index}",
                settings=settings,
                cluster_name="c",
                network=network,
                key=None,
            )
    try:
        folder = Path(app.synth().directory)
    except RuntimeError as error:
        refusals = [line for line in str(error).splitlines() if line.startswith("ERROR")]
        pytest.fail("\n".join(refusals))
    assert num_unlisted > 0
    for region in ZONE_ID_PREFIXES:
        found = json.loads((folder / f"{region}.template.json").read_text())["Resources"]
        made = [part for part in found.values() if part["Type"] == "AWS::SageMaker::Cluster"]
        types = {
            group["InstanceType"] for part in made for group in part["Properties"]["InstanceGroups"]
        }
        assert types == {name for name in INSTANCE_TYPES if not has_list_price(name, region)}


def warnings_of(app: App) -> list[str]:
    report = json.loads((Path(app.synth().directory) / "validation-report.json").read_text())
    return [
        violation["description"]
        for plugin in report["pluginReports"]
        for violation in plugin["violations"]
    ]


def test_a_type_without_a_list_price_is_a_warning_unless_a_plan_reserves_it() -> None:
    assert not has_list_price(P5E, "us-east-2") and has_list_price("ml.p5.48xlarge", "us-east-2")
    cluster = cluster_in("us-east-2", [P5E, "ml.p5.48xlarge"])
    app = new_app(FILE)
    stack = Stack(app, "Stack", env=Environment(region=cluster.region))
    add_clusters(stack, cluster, Network(stack, "Network", cluster=cluster))
    (warning,) = (text for text in warnings_of(app) if "price list" in text)
    assert warning.startswith("instance_groups[ml-p5e-48xlarge].instance_type: HyperPod's price")
    assert zone_warning(cluster, cluster.instance_groups[0]) is None
    away = cluster.instance_groups[0].model_copy(update={"availability_zone_id": "use2-az2"})
    assert "AWS bills about 0.01 USD per GB in each zone" in str(zone_warning(cluster, away))
    planned = cluster.instance_groups[0].model_copy(update={"training_plan_arn": PLAN})
    assert price_warning(cluster, planned) is None
