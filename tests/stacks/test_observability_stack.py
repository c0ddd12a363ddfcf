"""Observability of a cluster: the topic and its publishers, rules, alarms, events and Grafana."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from functools import cache
from typing import Any

import pytest
import yaml

from config.cluster_kinds import AnyCluster
from config.observability import Observability
from config.resource_names import construct_ids
from monitoring.alert_rules import rules_text
from monitoring.dashboards import dashboards
from stacks.remaining_costs import remaining_costs
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import (
    ALL_FILES,
    Templates,
    assembly,
    load,
    only,
    read_templates,
    resources,
    synthesize,
    templates,
)

WATCHED = ("clusters/eks-p5.yaml", "clusters/slurm-p5.yaml")
BY_FILE = pytest.mark.parametrize("file", WATCHED)
SERVICES = {"aps", "budgets", "cloudwatch", "events"}


def settings(file: str) -> Observability:
    found: Observability = load(file).observability
    return found


def stack(file: str) -> dict[str, Any]:
    return templates(file)[construct_ids(load(file)).observability]


def storage(file: str) -> dict[str, Any]:
    return templates(file)[construct_ids(load(file)).storage]


def evaluator(file: str) -> Evaluator:
    return Evaluator(templates(file), load(file).region)


def test_a_cluster_without_the_section_has_nothing_of_it() -> None:
    for file in set(ALL_FILES) - {*WATCHED}:
        made = templates(file)
        assert construct_ids(load(file)).observability not in made
        for template in made.values():
            for kind in (
                "AWS::SNS::Topic",
                "AWS::Grafana::Workspace",
                "AWS::CloudWatch::Alarm",
                "AWS::Events::Rule",
            ):
                assert not resources(template, kind)


@BY_FILE
def test_it_depends_on_storage_alone(file: str) -> None:
    """So that it stays when the cluster is destroyed, and shows what there was."""
    imported = set(re.findall(r'"Fn::ImportValue": "([^:"]+):', json.dumps(stack(file))))
    exporting = {name.rpartition("-")[2] for name in imported}
    assert exporting == {"storage"}


def statements(policy: dict[str, Any]) -> dict[str, Any]:
    return {statement.get("Sid", "account"): statement for statement in policy["Statement"]}


@BY_FILE
def test_services_publish_to_an_encrypted_topic_for_this_account_alone(file: str) -> None:
    template = storage(file)
    evaluate = evaluator(file)
    topic = evaluate(only(template, "AWS::SNS::Topic"))
    (key,) = resources(template, "AWS::KMS::Key").values()
    assert topic["KmsMasterKeyId"] == evaluate(
        {"Fn::GetAtt": [*resources(template, "AWS::KMS::Key"), "Arn"]}
    )
    by_key = [
        one
        for one in evaluate(key["Properties"]["KeyPolicy"])["Statement"]
        if one["Principal"].get("Service", "").removesuffix(".amazonaws.com") in SERVICES
    ]
    assert {tuple(one["Action"]) for one in by_key} == {("kms:Decrypt", "kms:GenerateDataKey*")}
    assert len(by_key) == len(SERVICES)

    policy = statements(evaluate(only(template, "AWS::SNS::TopicPolicy"))["PolicyDocument"])
    refused = policy.pop("AllowPublishThroughSSLOnly")
    assert (refused["Effect"], refused["Condition"]) == (
        "Deny",
        {"Bool": {"aws:SecureTransport": "false"}},
    )
    assert {
        one["Principal"]["Service"].removesuffix(".amazonaws.com") for one in policy.values()
    } == SERVICES
    for name, one in policy.items():
        # A condition that EventBridge does not satisfy would lose alerts silently.
        account = {} if name == "EventBridge" else {"aws:SourceAccount": ACCOUNT}
        assert one.get("Condition", {}).get("StringEquals", {}) == account
        assert "sns:Publish" in (
            one["Action"] if isinstance(one["Action"], list) else [one["Action"]]
        )
    workspace = evaluate({"Fn::GetAtt": [*resources(template, "AWS::APS::Workspace"), "Arn"]})
    assert policy["Prometheus"]["Condition"]["ArnEquals"] == {"aws:SourceArn": workspace}


@BY_FILE
def test_every_named_address_gets_alerts(file: str) -> None:
    told = [
        found["Properties"] for found in resources(storage(file), "AWS::SNS::Subscription").values()
    ]
    assert [(one["Protocol"], one["Endpoint"]) for one in told] == [
        ("email", email) for email in settings(file).emails
    ]


@cache
def plain() -> tuple[AnyCluster, Templates]:
    """Alerts alone, without keys, dashboards and continuous provisioning."""
    cluster = load(
        "clusters/slurm.yaml",
        continuous_provisioning=False,
        observability={"emails": ["hpc@example.com"]},
    )
    return cluster, read_templates(synthesize(cluster))


def test_a_topic_has_a_key_of_its_own_where_the_cluster_has_none() -> None:
    cluster, made = plain()
    template = made["SlurmStorageStack"]
    (name,) = resources(template, "AWS::KMS::Key")
    assert only(template, "AWS::SNS::Topic")["KmsMasterKeyId"] == {"Fn::GetAtt": [name, "Arn"]}
    assert "KmsKeyArn" not in only(template, "AWS::APS::Workspace")
    assert "KMS key" in remaining_costs(cluster)


def test_alerts_need_no_dashboards() -> None:
    template = plain()[1]["SlurmObservabilityStack"]
    assert resources(template, "AWS::APS::RuleGroupsNamespace")
    assert not resources(template, "AWS::Grafana::Workspace")
    assert not resources(template, "AWS::Lambda::Function")


@BY_FILE
def test_alerts_of_prometheus_go_to_the_topic(file: str) -> None:
    evaluate = evaluator(file)
    definition = evaluate(only(storage(file), "AWS::APS::Workspace")["AlertManagerDefinition"])
    config = yaml.safe_load(yaml.safe_load(definition)["alertmanager_config"])
    (topic,) = config["receivers"][0]["sns_configs"]
    assert topic["topic_arn"] == evaluate(
        {"Ref": next(iter(resources(storage(file), "AWS::SNS::Topic")))}
    )
    assert topic["sigv4"] == {"region": load(file).region}
    rules = evaluate(only(stack(file), "AWS::APS::RuleGroupsNamespace"))
    assert rules["Data"] == rules_text(load(file))
    assert rules["Workspace"] == topic_source(file)


def topic_source(file: str) -> str:
    policy = statements(
        evaluator(file)(only(storage(file), "AWS::SNS::TopicPolicy"))["PolicyDocument"]
    )
    found: str = policy["Prometheus"]["Condition"]["ArnEquals"]["aws:SourceArn"]
    return found


@BY_FILE
def test_budget_tells_the_topic_too(file: str) -> None:
    evaluate = evaluator(file)
    hyperpod = templates(file)[construct_ids(load(file)).hyperpod]
    budget = evaluate(only(hyperpod, "AWS::Budgets::Budget"))
    topic = evaluate({"Ref": next(iter(resources(storage(file), "AWS::SNS::Topic")))})
    for told in budget["NotificationsWithSubscribers"]:
        assert told["Subscribers"] == [
            {"SubscriptionType": "EMAIL", "Address": load(file).budget.email},
            {"SubscriptionType": "SNS", "Address": topic},
        ]


@BY_FILE
def test_alarms_know_the_size_of_their_file_system(file: str) -> None:
    cluster = load(file)
    alarms = {
        found["Properties"]["MetricName"]: evaluator(file)(found["Properties"])
        for found in resources(stack(file), "AWS::CloudWatch::Alarm").values()
        if found["Properties"]["Namespace"] == "AWS/FSx"
    }
    lustre = alarms.pop("FreeDataStorageCapacity")
    percent = settings(file).free_space_percent
    assert lustre["Threshold"] == cluster.storage.lustre.capacity_gib * 2**30 * percent // 100
    assert (lustre["Statistic"], lustre["Period"]) == ("Sum", 60), "the disks' values of one minute"
    assert lustre["ComparisonOperator"] == "LessThanThreshold"
    assert bool(alarms) is bool(cluster.storage.home)
    if cluster.storage.home:
        home = alarms["UsedStorageCapacity"]
        assert (
            home["Threshold"] == cluster.storage.home.capacity_gib * 2**30 * (100 - percent) // 100
        )
        assert home["ComparisonOperator"] == "GreaterThanThreshold"
    for alarm in (lustre, *alarms.values()):
        assert [one["Name"] for one in alarm["Dimensions"]] == ["FileSystemId"]
        assert len(alarm["AlarmActions"]) == len(alarm["OKActions"]) == 1


@BY_FILE
def test_the_end_of_a_training_plan_raises_alarms(file: str) -> None:
    evaluate = evaluator(file)
    arns = {group.training_plan_arn for group in load(file).instance_groups} - {None}
    plans = sorted(arn.rpartition("/")[2] for arn in arns)
    (rule,) = (
        evaluate(found["Properties"])
        for found in resources(stack(file), "AWS::Events::Rule").values()
        if "ScheduleExpression" in found["Properties"]
    )
    given = json.loads(rule["Targets"][0]["Input"])
    assert given["Plans"] == plans
    metric = (given["Namespace"], given["MetricName"])
    found = [
        evaluate(alarm["Properties"])
        for alarm in resources(stack(file), "AWS::CloudWatch::Alarm").values()
    ]
    alarms = [alarm for alarm in found if (alarm["Namespace"], alarm["MetricName"]) == metric]
    places = [(alarm["Dimensions"], alarm["Threshold"]) for alarm in alarms]
    assert places == [
        ([{"Name": given["Dimension"], "Value": plan}], days)
        for plan in plans
        for days in (14, 3, 1)
    ]
    topic = evaluate(stack(file)["Outputs"]["AlertTopicArn"]["Value"])
    for alarm in alarms:
        assert alarm["ComparisonOperator"] == "LessThanOrEqualToThreshold"
        assert alarm["AlarmActions"] == alarm["OKActions"] == [topic]
    # Without the metric there would be no alarm, so a function that fails has one of its own.
    (unread,) = (alarm for alarm in found if alarm["Namespace"] == "AWS/Lambda")
    assert unread["AlarmActions"] == [topic]
    (role,) = (
        evaluate(role["Properties"])
        for role in resources(stack(file), "AWS::IAM::Role").values()
        if "DescribeTrainingPlan" in json.dumps(role)
    )
    allowed = statements(role["Policies"][0]["PolicyDocument"])
    assert allowed["ReadPlans"]["Resource"] in (sorted(arns), *arns)
    assert allowed["PublishDays"]["Condition"] == {
        "StringEquals": {"cloudwatch:namespace": given["Namespace"]}
    }


# As the SageMaker developer guide shows them: "Events that Amazon SageMaker AI sends to EventBridge".
def health(name: str, status: str) -> dict[str, Any]:
    return {
        "source": "aws.sagemaker",
        "detail-type": "SageMaker HyperPod Cluster Node Health Event",
        "detail": {
            "ClusterName": name,
            "InstanceId": "i-12345678abcdefghi",
            "HealthSummary": {
                "HealthStatus": status,
                "HealthStatusReason": "fault type NvidiaErrorTerminate",
                "RepairAction": "None",
                "Recommendation": "Please Replace the Faulty Node.",
            },
        },
    }


def said(name: str, description: str) -> dict[str, Any]:
    return {
        "source": "aws.sagemaker",
        "detail-type": "SageMaker HyperPod Cluster Event",
        "detail": {
            "EventDetails": {
                "ClusterName": name,
                "InstanceGroupName": "p5",
                "EventLevel": "Info",
                "Description": description,
            }
        },
    }


def matches(pattern: Any, event: Any) -> bool:
    """EventBridge's rules, as far as they are used: lists of values, and wildcards."""
    if isinstance(pattern, dict):
        return isinstance(event, dict) and all(
            matches(value, event.get(key)) for key, value in pattern.items()
        )
    return any(
        bool(re.fullmatch(re.escape(one["wildcard"]).replace(r"\*", ".*"), event or ""))
        if isinstance(one, dict)
        else one == event
        for one in pattern
    )


def event_rules(file: str) -> list[dict[str, Any]]:
    """Return the rules for events, not those with a schedule."""
    found = [rule["Properties"] for rule in resources(stack(file), "AWS::Events::Rule").values()]
    return [rule for rule in found if "EventPattern" in rule]


@BY_FILE
def test_reports_broken_and_replaced_nodes(file: str) -> None:
    name = load(file).name
    evaluate = evaluator(file)
    rules = [evaluate(rule) for rule in event_rules(file)]

    def told(event: dict[str, Any]) -> int:
        return sum(matches(rule["EventPattern"], event) for rule in rules)

    replaced = (
        "Instance i-0391f86fa0fe0d465 is starting as part of instance replacement in Cluster {}"
    )
    assert told(health(name, "Unhealthy")) == 1
    assert told(health(name, "Schedulable")) == 0
    assert told(health("another", "Unhealthy")) == 0
    assert told(said(name, replaced.format(name))) == 1
    assert told(said("another", replaced.format("another"))) == 0
    assert (
        told(
            said(
                name, f"EC2 Instance i-0391f86fa0fe0d465 successfully provisioned in Cluster {name}"
            )
        )
        == 0
    )
    for rule in rules:
        (target,) = rule["Targets"]
        paths = target.get("InputTransformer", {"InputPathsMap": {}})["InputPathsMap"].values()
        example = health(name, "Unhealthy") if "HealthSummary" in str(rule) else said(name, "")
        for path in paths:
            value: Any = example
            for part in path.removeprefix("$.").split("."):
                value = value[part]


def test_a_cluster_without_continuous_provisioning_has_no_events_of_replacements() -> None:
    rules = resources(plain()[1]["SlurmObservabilityStack"], "AWS::Events::Rule").values()
    kinds = {kind for rule in rules for kind in rule["Properties"]["EventPattern"]["detail-type"]}
    assert kinds == {"SageMaker HyperPod Cluster Node Health Event", "Test Alert"}


@BY_FILE
def test_the_command_of_the_output_sends_a_test_alert(file: str) -> None:
    command = shlex.split(stack(file)["Outputs"]["TestAlertCommand"]["Value"])
    assert command[:5] == ["aws", "events", "put-events", "--region", load(file).region]
    (entry,) = json.loads(command[command.index("--entries") + 1])
    event = {
        "source": entry["Source"],
        "detail-type": entry["DetailType"],
        "detail": json.loads(entry["Detail"]),
    }
    evaluate = evaluator(file)
    rules = [evaluate(rule) for rule in event_rules(file)]
    (rule,) = (rule for rule in rules if matches(rule["EventPattern"], event))
    assert load(file).name in rule["Targets"][0]["Input"]


def test_on_slurm_a_fault_in_the_health_agent_s_log_raises_an_alarm() -> None:
    """On Slurm, the agent may send no event. A test event in the same log raises the same alarm."""
    file = WATCHED[1]
    evaluate = evaluator(file)
    (counted,) = (
        evaluate(found["Properties"])
        for found in resources(
            templates(file)["SlurmHyperPodStack"], "Custom::HyperPodHealthLog"
        ).values()
    )
    metric = (counted["MetricNamespace"], counted["MetricName"])
    (alarm,) = (
        evaluate(found["Properties"])
        for found in resources(stack(file), "AWS::CloudWatch::Alarm").values()
        if (found["Properties"]["Namespace"], found["Properties"]["MetricName"]) == metric
    )
    (topic,) = alarm["AlarmActions"]
    assert topic == evaluate(stack(file)["Outputs"]["AlertTopicArn"]["Value"])
    assert (alarm["Statistic"], alarm["Threshold"], alarm["TreatMissingData"]) == (
        "Sum",
        1,
        "notBreaching",
    )
    group = f"/aws/sagemaker/Clusters/{load(file).name}/abcdefghij12"
    assert counted["LogGroupName"] == group
    output = templates(file)["SlurmHyperPodStack"]["Outputs"]["TestHealthAlertCommand"]["Value"]
    shown = subprocess.run(
        ["bash", "-c", f'aws() {{ printf "%s\\n" "$@"; }}; {evaluate(output)}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    options = dict(zip(shown[2::2], shown[3::2], strict=True))
    assert shown[:2] == ["logs", "put-log-events"] and options["--log-group-name"] == group
    (sent,) = json.loads(options["--log-events"])
    field, value = re.findall(r'\$\.(\w+) = "(\w+)"', counted["Pattern"])[0]
    assert json.loads(sent["message"])[field] == value
    assert abs(sent["timestamp"] / 1000 - time.time()) < 3600
    # EKS clusters get the agent's events, and no second alert for each.
    eks = templates(WATCHED[0])["EksHyperPodStack"]
    assert not resources(eks, "Custom::HyperPodHealthLog")


def test_people_sign_in_as_the_file_says() -> None:
    eks, slurm = (only(stack(file), "AWS::Grafana::Workspace") for file in WATCHED)
    assert eks["AuthenticationProviders"] == ["AWS_SSO"] and "SamlConfiguration" not in eks
    assert slurm["AuthenticationProviders"] == ["SAML"]
    wanted = settings(WATCHED[1]).grafana
    assert wanted and wanted.saml
    assert slurm["SamlConfiguration"] == {
        "IdpMetadata": {"Url": wanted.saml.metadata_url},
        "AssertionAttributes": {
            "Role": "role",
            "Name": "displayName",
            "Login": "mail",
            "Email": "mail",
        },
        "RoleValues": {"Admin": wanted.admins, "Editor": wanted.editors},
    }


def role_statements(file: str, construct_id: str) -> dict[str, Any]:
    (role,) = (
        found["Properties"]
        for found in resources(stack(file), "AWS::IAM::Role").values()
        if found["Metadata"]["aws:cdk:path"].split("/", 1)[1] == f"{construct_id}/Resource"
    )
    (policy,) = role["Policies"]
    return statements(evaluator(file)(policy["PolicyDocument"]))


@BY_FILE
def test_grafana_reads_the_cluster_s_metrics_and_changes_nothing(file: str) -> None:
    reads = role_statements(file, "Grafana/Role")
    assert reads["QueryMetrics"]["Resource"] == topic_source(file)
    actions = [action for one in reads.values() for action in one["Action"]]
    assert all(re.match(r"\w+:(Describe|Get|List|Query)", action) for action in actions)


@BY_FILE
def test_the_function_may_do_what_it_does_to_this_workspace(file: str) -> None:
    mine = role_statements(file, "Contents/Function/Role")
    assert mine["UseAServiceAccount"]["Resource"].endswith(":/workspaces/g-0123456789")
    # Identity Center's alone: with SAML the provider's assertions give roles.
    by_identity_center = {"AssignPeople", "GiveRoles", "ReadIdentityCenter"}
    assert by_identity_center & set(mine) == (by_identity_center if file == WATCHED[0] else set())
    if file == WATCHED[0]:
        # The account of the organization that has Identity Center is not known; ours is.
        assert mine["AssignPeople"]["Resource"] == "arn:aws:sso::*:application/*"
        assert mine["AssignPeople"]["Condition"] == {
            "StringEqualsIfExists": {"sso:ApplicationAccount": ACCOUNT}
        }
        assert all(
            re.match(r"[\w-]+:(Describe|Get|List)", action)
            for action in mine["ReadIdentityCenter"]["Action"]
        )


@BY_FILE
def test_grafana_is_given_sources_dashboards_and_people(file: str) -> None:
    cluster: AnyCluster = load(file)
    given = evaluator(file)(only(stack(file), "Custom::HyperPodGrafanaContents"))
    prometheus, cloudwatch = json.loads(given["DataSources"])
    assert prometheus["url"].startswith(f"https://aps-workspaces.{cluster.region}.amazonaws.com/")
    assert prometheus["isDefault"] is prometheus["jsonData"]["sigV4Auth"] is True
    assert (
        prometheus["jsonData"]["sigV4Region"]
        == cloudwatch["jsonData"]["defaultRegion"]
        == cluster.region
    )
    marks = json.loads(given["Marks"])
    assert set(marks) == {"@LUSTRE_ID@", *(["@HOME_ID@"] if cluster.storage.home else [])}
    assert all(value.startswith("fs-") for value in marks.values())
    wanted = settings(file).grafana
    assert wanted
    people = {"ADMIN": wanted.admins, "EDITOR": wanted.editors, "VIEWER": wanted.viewers}
    assert given["People"] == (people if wanted.sign_in == "identity_center" else {})


@BY_FILE
def test_dashboards_lie_beside_the_function(file: str) -> None:
    code = {
        json.dumps(found["Properties"]["Code"], sort_keys=True)
        for found in resources(stack(file), "AWS::Lambda::Function").values()
        if found["Properties"]["Handler"].startswith("index.")
        and "OnEvent" in str(found["Metadata"])
    }
    (asset,) = re.findall(r"([0-9a-f]{64})\.zip", " ".join(code))
    folder = assembly(file) / f"asset.{asset}"
    assert {path.name for path in folder.iterdir()} == {"index.py", "dashboards.json"}
    assert json.loads((folder / "dashboards.json").read_text()) == dashboards(load(file).scheduler)
