import pytest
from botocore.exceptions import ClientError
from botocore.loaders import create_loader

from tests.tools.answering_aws import AnsweringAws, Refusal
from tests.tools.nodes.slurm_nodes import LAUNCHED, group, node, running_cluster
from tools.nodes.cluster_nodes import (
    UNREACHABLE,
    ClusterNodes,
    choose_node,
    nodes_table,
    read_cluster_nodes,
)

CONTROLLER = group("controller", "Controller", 1)
WORKERS = group("workers", "Compute", 3)
LOGIN = group("login", "Login", 2)
# Not in the order of launch, as the service lists them.
NODES = [node("workers", 3), node("controller", 1), node("workers", 1), node("workers", 2)]


def read(aws: AnsweringAws) -> ClusterNodes:
    return read_cluster_nodes(aws.session.client("sagemaker"), "esm2-slurm")


def cluster(**changes: object) -> ClusterNodes:
    return read(running_cluster("esm2-slurm", [CONTROLLER, WORKERS], NODES, **changes))  # type: ignore[arg-type]


def test_nodes_of_all_pages_are_numbered_by_launch() -> None:
    found = cluster()
    assert [n.name for n in found.nodes] == ["controller-1", "workers-1", "workers-2", "workers-3"]
    assert [n.instance_id for n in found.nodes[1:]] == [
        node("workers", i)["InstanceId"] for i in (1, 2, 3)
    ]


def test_target_is_the_one_session_manager_takes() -> None:
    found = cluster()
    instance = node("workers", 2)["InstanceId"]
    target = found.target(choose_node(found, "workers-2"))
    assert target == f"sagemaker-cluster:abc123def456_workers-{instance}"


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("head", "controller-1"),
        ("controller", "controller-1"),
        ("workers-3", "workers-3"),
        (node("workers", 2)["InstanceId"], "workers-2"),
        ("ip-10-0-119-2", "workers-2"),
    ],
)
def test_a_node_is_found_by_each_of_its_names(wanted: str, name: str) -> None:
    assert choose_node(cluster(), wanted).name == name


def test_the_head_is_a_running_login_node_where_there_are_any() -> None:
    nodes = [node("controller", 1), node("login", 1, status="ShuttingDown"), node("login", 2)]
    found = read(running_cluster("esm2-slurm", [CONTROLLER, LOGIN], nodes))
    assert choose_node(found).name == "login-2"


def test_a_group_named_like_a_node_does_not_hide_the_node() -> None:
    nodes = [node("gpu", 1), node("gpu-1", 2), node("gpu-1", 3)]
    found = read(
        running_cluster(
            "esm2-slurm", [group("gpu", "Compute", 1), group("gpu-1", "Compute", 2)], nodes
        )
    )
    assert choose_node(found, "gpu-1").group == "gpu"


def test_the_older_of_two_nodes_launched_together_is_stable() -> None:
    twins = [
        node("workers", 2) | {"LaunchTime": LAUNCHED},
        node("workers", 1) | {"LaunchTime": LAUNCHED},
    ]
    for nodes in (twins, twins[::-1]):
        found = read(running_cluster("esm2-slurm", [CONTROLLER, WORKERS], nodes))
        assert found.nodes[0].instance_id == node("workers", 1)["InstanceId"]


def test_an_ambiguous_group_names_its_nodes() -> None:
    with pytest.raises(
        ValueError, match="workers has 3 nodes; name one of workers-1, workers-2, workers-3"
    ):
        choose_node(cluster(), "workers")


def test_an_unknown_node_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        ValueError,
        match="no node gpu-1 in cluster esm2-slurm; its nodes are controller-1, workers-1",
    ):
        choose_node(cluster(), "gpu-1")


def test_long_lists_are_cut() -> None:
    nodes = [node("workers", index) for index in range(1, 15)]
    found = read(running_cluster("esm2-slurm", [CONTROLLER, WORKERS], nodes))
    with pytest.raises(ValueError, match=r"workers-10 and 4 more \(--list\)$"):
        choose_node(found, "gpu")


@pytest.mark.parametrize("status", ["Failure", "SystemUpdating", "DeepHealthCheckInProgress"])
def test_a_node_that_is_unwell_can_be_looked_into(status: str) -> None:
    nodes = [node("controller", 1, status=status)]
    assert (
        choose_node(read(running_cluster("esm2-slurm", [CONTROLLER], nodes))).name == "controller-1"
    )


def test_a_node_that_is_not_there_says_why() -> None:
    nodes = [
        node(
            "controller", 1, status="Pending", message="Lifecycle scripts did not run successfully"
        )
    ]
    found = read(running_cluster("esm2-slurm", [CONTROLLER], nodes, status="Creating"))
    with pytest.raises(
        ValueError,
        match=r"is Pending \(Lifecycle scripts did not .*\); cluster esm2-slurm is Creating",
    ):
        choose_node(found)


def test_a_cluster_without_nodes_says_what_it_is_doing() -> None:
    aws = running_cluster(
        "esm2-slurm", [CONTROLLER], [], status="Failed", failure="No capacity for ml.m5.12xlarge"
    )
    with pytest.raises(
        ValueError, match=r"no nodes yet; it is Failed \(No capacity for ml\.m5\.12xlarge\)"
    ):
        choose_node(read(aws))


@pytest.mark.parametrize(
    "refusal",
    [Refusal("ResourceNotFound"), Refusal("ValidationException", "Could not find cluster 'x'.")],
)
@pytest.mark.parametrize(
    ("names", "expected"), [(["b", "a"], "existing clusters: a, b"), ([], "there are no clusters")]
)
def test_a_missing_cluster_is_answered_with_those_there_are(
    names: list[str], expected: str, refusal: Refusal
) -> None:
    aws = AnsweringAws("us-west-2")
    aws.answer("sagemaker", "DescribeCluster", refusal)
    arn = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abc123def456"
    summaries = [
        {
            "ClusterName": n,
            "ClusterArn": arn,
            "ClusterStatus": "InService",
            "CreationTime": LAUNCHED,
        }
        for n in names
    ]
    aws.answer("sagemaker", "ListClusters", {"ClusterSummaries": summaries})
    with pytest.raises(
        ValueError, match=f"no cluster esm2-slurm in us-west-2; {expected}; deploy it"
    ):
        read(aws)


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("AccessDeniedException"),
        Refusal("ValidationException", "1 validation error detected"),
    ],
)
def test_other_refusals_are_not_taken_for_a_missing_cluster(refusal: Refusal) -> None:
    aws = AnsweringAws("us-west-2")
    aws.answer("sagemaker", "DescribeCluster", refusal)
    with pytest.raises(ClientError, match=refusal.code):
        read(aws)


def test_the_table_has_a_line_per_node() -> None:
    lines = nodes_table(cluster()).splitlines()
    assert lines[0].split() == ["node", "host", "instance", "type", "status"]
    instance = node("controller", 1)["InstanceId"]
    assert lines[1].split() == [
        "controller-1",
        "ip-10-0-99-1",
        instance,
        "ml.g5.8xlarge",
        "Running",
    ]
    assert len(lines) == 5


def test_every_state_of_a_node_is_known() -> None:
    """A new state of the service must be given one of both meanings."""
    with_agent = {"Running", "Failure", "SystemUpdating", "DeepHealthCheckInProgress"}
    model = create_loader().load_service_model("sagemaker", "service-2")
    assert with_agent | UNREACHABLE == set(model["shapes"]["ClusterInstanceStatus"]["enum"])
    assert not with_agent & UNREACHABLE
