"""Environment and checks of processes on AWS Trainium, which has no NCCL.

torch-neuronx reads the address of the first process and the assignment of cores from torchrun's variables.
"""

from pathlib import Path

from seqlm.training.heartbeat import SLOW_VARIABLE

DEVICE_RESOURCE = "aws.amazon.com/neuron"
"""Kubernetes resource: a device with all of its cores. Up to Neuron 2.19, AWS's plugin had another one."""
COMPILING_SECONDS = 7200
"""Time limit of slow phases, such as the first step. It is an estimate: the compilation of these graphs has
not been measured."""
EXECUTION_SECONDS = 600
"""Time limit of a graph, which waits for the slowest process in its sums. The runtime's default is 30. AWS's
pre-training of BERT has 600 (aws-neuron-samples, dp_bert_hf_pretrain), as torch has with NCCL."""
LIBRARIES = ("/opt/amazon/efa/lib", "/opt/aws/neuron/lib")
"""Folders of libraries on a node; an image has its own."""


def environment(*, efa: bool) -> dict[str, str]:
    """Return the environment of the processes.

    Args:
        efa: whether nodes communicate by EFA. The variables are those of AWS Neuron's documentation, "How to
            prepare trn1.32xlarge for multi-node execution". Only Amazon Linux 2 needs the last one.
    """
    variables = {
        "PJRT_DEVICE": "NEURON",
        # torch.autocast alone selects the products in bf16. The compile cache keeps a compilation that was
        # stopped as a failed one, which is not tried again without the second option.
        "NEURON_CC_FLAGS": "--auto-cast=none --retry_failed_compilation",
        "NEURON_RT_EXEC_TIMEOUT": str(EXECUTION_SECONDS),
        SLOW_VARIABLE: str(COMPILING_SECONDS),
    }
    if efa:
        variables |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}
    return variables


def device_problems(
    given: int, giver: str, versions: dict[str, str], root: Path = Path("/")
) -> list[str]:
    """Return the faults of the Neuron devices of a node.

    Args:
        given: number of devices of the job on this node.
        giver: name of the scheduler, for messages.
        versions: versions that must be the same on all nodes. The driver's is added.
        root: root of the file system.
    """
    driver = root / "sys/module/neuron/version"
    if driver.is_file():
        versions["driver"] = driver.read_text().strip()
    found = len(list((root / "dev").glob("neuron[0-9]*")))
    if found < given:
        return [
            f"{giver} gives the job {given} Neuron devices there, /dev has {found}: is the driver loaded? "
            "neuron-ls"
        ]
    return []
