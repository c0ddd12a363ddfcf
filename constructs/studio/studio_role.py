"""Role of a profile's spaces."""

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct
from constructs.nodes.node_roles import describe_file_systems, key_statements
from constructs.policy.statement_role import WRITE_LOGS, Statement, statement_role, unscoped

_OWNER = "sagemaker:OwnerUserProfileArn"
_SHARING = "sagemaker:SpaceSharingType"


def studio_role(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    key: kms.IKey | None,
    more: Sequence[Statement],
) -> iam.Role:
    """The execution role of spaces: one's own spaces, their logs, and ``more``.

    SageMaker's managed policies for Studio reach all buckets, clusters and roles of an account.
    """
    stack = Stack.of(scope)
    statements = [*_studio_statements(stack), *more]
    if key:
        # The disks of spaces.
        statements += key_statements(stack, key.key_arn, volumes="Disks")
    sagemaker = iam.ServicePrincipal(
        "sagemaker.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": stack.account}}
    )
    role = statement_role(
        scope,
        construct_id,
        description=description,
        assumed_by=sagemaker,
        policy_name="Studio",
        statements=statements,
    )
    # SageMaker uses it to put the person's name into the session (the domain's execution role identity).
    named = iam.PolicyStatement(actions=["sts:SetSourceIdentity"], principals=[sagemaker])
    assert role.assume_role_policy
    role.assume_role_policy.add_statements(named)
    return role


def _studio_statements(stack: Stack) -> list[Statement]:
    """After "Give your users access to spaces" in SageMaker's developer guide, for private ones alone."""
    arn = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}"
    logs = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:/aws/sagemaker/studio"
    profile = f"{arn}:user-profile/${{sagemaker:DomainId}}/${{sagemaker:UserProfileName}}"
    private: dict[str, dict[str, str | list[str]]] = {
        "ArnLike": {_OWNER: profile},
        "StringEquals": {_SHARING: ["Private"]},
    }
    names = "people name their spaces; the condition names the person"
    return [
        unscoped(
            "FindStudio",
            *(f"sagemaker:List{kind}" for kind in ("Apps", "Domains", "Spaces", "UserProfiles")),
            why="SageMaker's lists have no resources",
        ),
        Statement(
            "SeeStudio",
            [f"sagemaker:Describe{kind}" for kind in ("App", "Domain", "Space", "UserProfile")],
            [f"{arn}:{kind}/*" for kind in ("app", "domain", "space", "user-profile")],
            why_wildcard="SageMaker makes up the domain's id after the role is there",
        ),
        Statement(
            "OwnSpaces",
            ["sagemaker:CreateSpace", "sagemaker:DeleteSpace", "sagemaker:UpdateSpace"],
            [f"{arn}:space/${{sagemaker:DomainId}}/*"],
            private,
            names,
        ),
        Statement(
            "RunOwnSpaces",
            ["sagemaker:CreateApp", "sagemaker:DeleteApp"],
            [f"{arn}:app/${{sagemaker:DomainId}}/*"],
            private,
            names,
        ),
        Statement(
            "TagWhatIsMade",
            ["sagemaker:AddTags"],
            [f"{arn}:app/*", f"{arn}:space/*"],
            {"Null": {"sagemaker:TaggingAction": "false"}},
            names,
        ),
        Statement("OpenStudio", ["sagemaker:CreatePresignedDomainUrl"], [profile]),
        Statement(
            "WriteLogs",
            ["logs:CreateLogGroup", *WRITE_LOGS],
            [logs, f"{logs}:log-stream:*"],
            why_wildcard="SageMaker names streams after spaces",
        ),
        describe_file_systems("FindFileSystems"),
    ]
