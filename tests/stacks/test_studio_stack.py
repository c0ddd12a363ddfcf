"""Studio's stack, and what it asks of the cluster's: who may do what, and what finds what."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from config import rules
from config.resource_names import job_namespaces
from config.studio_people import cluster_users, session_document
from constructs.studio.studio_domain import MAX_CONTENT, SCRIPTS
from tests.golden.normalised import normalised, studio_golden_file
from tests.golden.test_golden import difference
from tests.stacks.eks_variants import EKS_EVERY_OPTION
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.shapes import request_shape, violations
from tests.stacks.studios import (
    EKS,
    SLURM,
    STUDIOS,
    studio_stack,
    studio_template,
    studio_templates,
)
from tests.stacks.synthesized import only, resources
from tests.stacks.variants import variant_templates

NAMES = list(STUDIOS)
SAGEMAKER = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}"
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
BUCKET = f"arn:aws:s3:::sagemaker-every-option-{ACCOUNT}-us-east-1"


def evaluated(name: str) -> Evaluator:
    return Evaluator(studio_templates(name), STUDIOS[name].region)


def domain(name: str) -> dict[str, Any]:
    found: dict[str, Any] = evaluated(name)(only(studio_template(name), "AWS::SageMaker::Domain"))
    return found


def role_statements(
    name: str, construct_id: str, stack: str | None = None
) -> dict[str, tuple[Any, ...]]:
    """Actions, resources and conditions by statement."""
    template = studio_templates(name)[stack or studio_stack(name)]
    [role] = (
        role
        for role in resources(template, "AWS::IAM::Role").values()
        if role["Metadata"]["aws:cdk:path"].split("/", 1)[1] == f"{construct_id}/Resource"
    )
    [policy] = role["Properties"]["Policies"]
    found = evaluated(name)(policy["PolicyDocument"]["Statement"])
    return {one["Sid"]: (one["Action"], one["Resource"], one.get("Condition")) for one in found}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_may_ask_for_it(name: str) -> None:
    assert rules.violations(STUDIOS[name]) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_template_is_the_approved_one(name: str) -> None:
    found = difference(studio_golden_file(name), normalised(studio_template(name)))
    assert not found, f"{found}\n\nif this is what you want: make golden, and commit the difference"


@pytest.mark.parametrize("name", NAMES)
def test_sagemaker_takes_the_domain(name: str) -> None:
    found = domain(name)
    found.pop("Tags")
    assert list(violations(request_shape("CreateDomain"), found)) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_domain_is_in_the_clusters_network_and_leaves_nothing(name: str) -> None:
    found = domain(name)
    assert found["AppNetworkAccessType"] == "VpcOnly"
    assert found["HomeEfsFileSystemCreation"] == "Disabled"
    assert len(found["SubnetIds"]) == 1
    settings = found["DefaultUserSettings"]
    assert "CustomFileSystemConfigs" not in settings, "each profile has a partition of its own"
    for app in ("JupyterLabAppSettings", "CodeEditorAppSettings"):
        idle = settings[app]["AppLifecycleManagement"]["IdleSettings"]
        assert idle["LifecycleManagement"] == "ENABLED" and idle["IdleTimeoutInMinutes"] == 120
        assert (
            settings[app]["DefaultResourceSpec"]["LifecycleConfigArn"]
            in settings[app]["LifecycleConfigArns"]
        )
    assert found["AuthMode"] == {SLURM: "IAM", EKS: "SSO"}[name]
    assert ("KmsKeyId" in found) is (STUDIOS[name].storage.kms != "aws")


@pytest.mark.parametrize("name", NAMES)
def test_what_spaces_start_with_is_small_enough_and_stays_the_same(name: str) -> None:
    """A space does not start any more when the lifecycle configuration that it remembers is gone."""
    digest = hashlib.sha256((SCRIPTS / "start_space.sh").read_bytes()).hexdigest()[:16]
    made = resources(studio_template(name), "AWS::SageMaker::StudioLifecycleConfig")
    found = [evaluated(name)(config["Properties"]) for config in made.values()]
    assert {config["StudioLifecycleConfigAppType"] for config in found} == {
        "JupyterLab",
        "CodeEditor",
    }
    for config in found:
        config.pop("Tags")
        assert list(violations(request_shape("CreateStudioLifecycleConfig"), config)) == []
        content = config["StudioLifecycleConfigContent"]
        assert len(content) < MAX_CONTENT
        text = base64.b64decode(content).decode()
        current = f"s3://{BUCKET.split(':')[-1].replace(SLURM, name)}/studio/current"
        assert (
            f'CURRENT="{current}" REGION="us-east-1"' in text and "@" not in text.split("HOME")[0]
        )
        assert config["StudioLifecycleConfigName"].endswith(f"-{digest}")


def test_nothing_reaches_a_space_but_its_file_system() -> None:
    template = studio_template(SLURM)
    opened = evaluated(SLURM)(
        [
            rule["Properties"]
            for rule in resources(template, "AWS::EC2::SecurityGroupIngress").values()
        ]
    )
    assert all("SourceSecurityGroupId" in rule and "CidrIp" not in rule for rule in opened)
    ports = sorted((rule["FromPort"], rule["ToPort"]) for rule in opened)
    # Lustre both ways, and Slurm's daemons for the login space.
    assert ports == [(988, 988)] * 2 + [(1018, 1023)] * 2 + [(6817, 6819)]
    group = only(template, "AWS::EC2::SecurityGroup")
    assert "SecurityGroupIngress" not in group
    assert [rule["FromPort"] for rule in group["SecurityGroupEgress"]] == [443]
    # Outbound HTTPS is open already. In an open network, all outbound traffic is.
    for name, expected in (
        (SLURM, [(988, 988), (1018, 1023), (6817, 6819)]),
        (EKS, [(988, 988), (1018, 1023)]),
    ):
        out = resources(studio_template(name), "AWS::EC2::SecurityGroupEgress").values()
        found = sorted(
            (rule["Properties"]["FromPort"], rule["Properties"]["ToPort"]) for rule in out
        )
        assert found == expected, name
    eks = resources(studio_template(EKS), "AWS::EC2::SecurityGroupIngress").values()
    assert (443, 443) in [
        (rule["Properties"]["FromPort"], rule["Properties"]["ToPort"]) for rule in eks
    ]


def test_a_space_may_do_what_its_owner_needs() -> None:
    profile = f"{SAGEMAKER}:user-profile/${{sagemaker:DomainId}}/${{sagemaker:UserProfileName}}"
    own = {
        "ArnLike": {"sagemaker:OwnerUserProfileArn": profile},
        "StringEquals": {"sagemaker:SpaceSharingType": ["Private"]},
    }
    found = role_statements(SLURM, "Role")
    assert list(found) == [
        *("FindStudio", "SeeStudio", "OwnSpaces", "RunOwnSpaces", "TagWhatIsMade", "OpenStudio"),
        *("WriteLogs", "FindFileSystems", "ListScripts", "ReadScripts"),
        *("LogRuns", "LookAtRuns", "FindMlflow"),
        *("Decrypt", "GrantDisksTheKey", "DescribeKeyOfDisks"),
    ]
    # SageMaker's lists have no resources, in the authorization reference.
    assert found["FindStudio"][1:] == found["FindMlflow"][1:] == ("*", None)
    spaces = f"{SAGEMAKER}:space/${{sagemaker:DomainId}}/*"
    actions = ["sagemaker:CreateSpace", "sagemaker:DeleteSpace", "sagemaker:UpdateSpace"]
    assert found["OwnSpaces"] == (actions, spaces, own)
    assert found["RunOwnSpaces"][2] == own
    assert found["ReadScripts"][:2] == ("s3:GetObject", f"{BUCKET}/studio/*")
    assert found["OpenStudio"][:2] == ("sagemaker:CreatePresignedDomainUrl", profile)
    for actions, _, _ in found.values():
        for action in [actions] if isinstance(actions, str) else actions:
            assert "*" not in action
            assert action.split(":")[0] not in ("iam", "ec2", "secretsmanager", "ssm", "sts")


def test_sagemaker_may_say_whose_sessions_are_whose() -> None:
    """Else what a role does is refused where the domain hands on people's names (the developer guide)."""
    assert domain(SLURM)["DomainSettings"]["ExecutionRoleIdentityConfig"] == "USER_PROFILE_NAME"
    trusts = [
        evaluated(SLURM)(role["Properties"]["AssumeRolePolicyDocument"]["Statement"])
        for role in resources(studio_template(SLURM), "AWS::IAM::Role").values()
    ]
    of_spaces = [trust for trust in trusts if "sagemaker.amazonaws.com" in json.dumps(trust)]
    assert len(of_spaces) == 3
    for [trust] in of_spaces:
        assert trust["Action"] == ["sts:AssumeRole", "sts:SetSourceIdentity"]
        assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_who_submits_can_run_its_own_document_and_no_shell() -> None:
    common = role_statements(SLURM, "Role")
    ben = role_statements(SLURM, "Role-ben")
    clusters = f"{SAGEMAKER}:cluster/*"
    assert {sid: ben[sid] for sid in ben if sid not in common} == {
        "FindController": (
            ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
            clusters,
            {"StringEquals": {"aws:ResourceTag/hyperpod-cluster": SLURM}},
        ),
        "SubmitJobs": (
            "ssm:StartSession",
            f"arn:aws:ssm:us-east-1:{ACCOUNT}:document/{_document_id()}",
            None,
        ),
        "SubmitJobsToNodes": (
            "ssm:StartSession",
            clusters,
            {"Bool": {"ssm:SessionDocumentAccessCheck": "true"}},
        ),
        "EndSessions": (
            "ssm:TerminateSession",
            f"arn:aws:ssm:us-east-1:{ACCOUNT}:session/${{aws:userid}}-*",
            None,
        ),
        "SpeakInSessions": (
            "ssmmessages:OpenDataChannel",
            f"arn:aws:ssm:us-east-1:{ACCOUNT}:session/*",
            None,
        ),
    }


def _document_id() -> str:
    [name] = resources(studio_template(SLURM), "AWS::SSM::Document")
    return name


def test_a_session_is_one_users_and_takes_nothing_a_shell_would_read() -> None:
    made = only(studio_template(SLURM), "AWS::SSM::Document")
    assert made["Name"] == "every-option-studio-ben" and made["DocumentType"] == "Session"
    assert made["Content"] == session_document(STUDIOS[SLURM], "ben")
    [command] = [made["Content"]["properties"]["linux"]["commands"]]
    assert command.startswith("runuser --user ben -- ")
    assert command.endswith(
        " python3 /usr/local/lib/node-setup/studio_submit_every-option.py {{ request }}"
    )
    assert made["Content"]["parameters"]["request"]["allowedPattern"] == "^[A-Za-z0-9+/=]{1,40000}$"


def test_only_a_login_space_may_read_the_key() -> None:
    common = role_statements(SLURM, "Role")
    ada = role_statements(SLURM, "Role-ada-l")
    secret = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:accounting-AbCdEf"
    assert {sid: ada[sid] for sid in ada if sid not in common} == {
        "ReadSlurm": ("s3:GetObject", f"{BUCKET}/studio-login/*", None),
        "ReadKeyOfSlurm": ("secretsmanager:GetSecretValue", secret, None),
    }
    text = json.dumps(studio_template(SLURM))
    assert text.count("secretsmanager:GetSecretValue") == 1


def test_the_controller_answers_and_publishes_and_workers_do_not() -> None:
    found = role_statements(SLURM, "ControllerRole/Role", "SlurmHyperPodStack")
    assert found["AnswerStudio"][0] == ["sqs:DeleteMessage", "sqs:ReceiveMessage"]
    assert found["AcknowledgeToStudio"][0] == "sqs:SendMessage"
    assert found["PublishSlurm"][:2] == ("s3:PutObject", f"{BUCKET}/studio-login/*")
    assert found["PublishKeyOfSlurm"][0] == "secretsmanager:PutSecretValue"
    assert found["KeyOfQueues"][:2] == (["kms:Decrypt", "kms:GenerateDataKey"], KEY)
    worker = role_statements(SLURM, "WorkerRole/Role", "SlurmHyperPodStack")
    assert not set(worker) & {
        "AnswerStudio",
        "AcknowledgeToStudio",
        "PublishSlurm",
        "PublishKeyOfSlurm",
    }


def test_profiles_are_the_files_and_share_a_role_if_they_may_do_no_more() -> None:
    made = resources(studio_template(SLURM), "AWS::SageMaker::UserProfile")
    roles = {
        found["Properties"]["UserProfileName"]: found["Properties"]["UserSettings"][
            "ExecutionRole"
        ]["Fn::GetAtt"][0]
        for found in made.values()
    }
    default = only(studio_template(SLURM), "AWS::SageMaker::Domain")["DefaultUserSettings"]
    assert list(roles) == ["ada-l", "ben", "guest"]
    assert roles["guest"] == default["ExecutionRole"]["Fn::GetAtt"][0]
    assert len(set(roles.values())) == 3
    single = only(studio_template(EKS), "AWS::SageMaker::UserProfile")
    assert (single["SingleSignOnUserIdentifier"], single["SingleSignOnUserValue"]) == (
        "UserName",
        "ada@example.org",
    )


@pytest.mark.parametrize("name", NAMES)
def test_queues_are_encrypted_and_keep_and_report_failures(name: str) -> None:
    queues = resources(studio_template(name), "AWS::SQS::Queue")
    assert len(queues) == 4
    dead = {
        found["Properties"]["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
        for found in queues.values()
        if "RedrivePolicy" in found["Properties"]
    }
    alarms = resources(studio_template(name), "AWS::CloudWatch::Alarm").values()
    watched = {
        alarm["Properties"]["Dimensions"][0]["Value"]["Fn::GetAtt"][0]
        for alarm in alarms
        if alarm["Properties"]["Namespace"] == "AWS/SQS"
    }
    assert len(dead) == 2 and dead == watched
    for found in queues.values():
        own_key = STUDIOS[name].storage.kms != "aws"
        properties = found["Properties"]
        assert ("KmsMasterKeyId" in properties) is own_key
        assert properties.get("SqsManagedSseEnabled", False) is not own_key
        assert properties["MessageRetentionPeriod"] == 14 * 24 * 3600


def test_events_of_this_domain_and_the_clock_ask_for_partitions() -> None:
    made = resources(studio_template(SLURM), "AWS::Events::Rule").values()
    [events] = [rule["Properties"] for rule in made if "EventPattern" in rule["Properties"]]
    pattern = evaluated(SLURM)(events["EventPattern"])
    assert pattern["detail"]["requestParameters"] == {"domainId": ["d-0123456789ab"]}
    assert pattern["detail"]["eventName"] == ["CreateUserProfile", "DeleteUserProfile"]
    assert [rule["Properties"].get("ScheduleExpression") for rule in made].count(
        "rate(15 minutes)"
    ) == 1


def test_functions_get_the_owner_of_each_partition() -> None:
    made = resources(studio_template(SLURM), "AWS::Lambda::Function").values()
    [request] = (
        evaluated(SLURM)(found["Properties"]["Environment"]["Variables"])
        for found in made
        if found["Properties"]["Handler"] == "index.request"
    )
    assert request["REMOVAL"] == "destroy" and request["FOLDER"] == "/studio/users"
    assert json.loads(request["UIDS"]) == {"ada-l": [2001], "ben": [2002]}
    assert cluster_users(STUDIOS[SLURM])["ada-l"].gid == 3000


def test_on_eks_a_job_answers_and_spaces_are_let_into_namespaces_of_jobs() -> None:
    template = studio_templates(EKS)["EksHyperPodStack"]
    evaluate = evaluated(EKS)
    text = json.dumps(
        evaluate(
            [
                r["Properties"]
                for r in resources(template, "Custom::AWSCDK-EKS-KubernetesResource").values()
            ]
        )
    )
    assert (
        "studio-partitions" in text
        and "partitions.py" in text
        and '\\"kind\\":\\"CronJob\\"' in text
    )
    entries = [
        evaluate(found["Properties"])
        for found in resources(template, "AWS::EKS::AccessEntry").values()
        if "-studio:" in json.dumps(found["Properties"]["PrincipalArn"])
    ]
    [entry] = entries
    assert entry["AccessPolicies"] == [
        {
            "AccessScope": {"Namespaces": job_namespaces(EKS_EVERY_OPTION), "Type": "namespace"},
            "PolicyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSEditPolicy",
        }
    ]
    found = role_statements(EKS, "Studio/Role/Role", "EksHyperPodStack")
    assert set(found) == {"AnswerStudio", "AcknowledgeToStudio", "KeyOfQueues"}


def test_a_shared_partition_needs_no_queue() -> None:
    template = variant_templates("existing_vpc")["SlurmStudioStack"]
    [shared] = only(template, "AWS::SageMaker::Domain")["DefaultUserSettings"][
        "CustomFileSystemConfigs"
    ]
    assert shared["FSxLustreFileSystemConfig"]["FileSystemPath"] == "/studio/shared"
    assert not resources(template, "AWS::SQS::Queue") and not resources(
        template, "AWS::Events::Rule"
    )
    assert not resources(template, "AWS::SecretsManager::Secret")
