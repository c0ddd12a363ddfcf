"""Environment and checks of processes on AWS Trainium, without NCCL.

torch-neuronx reads the address of the first process and the assignment of cores from torchrun's variables.
"""

from pathlib import Path

from seqlm.training.heartbeat import SLOW_VARIABLE

DEVICE_RESOURCE = "aws.amazon.com/neuron"
"""Kubernetes resource: a device with all of its cores. Up to Neuron 2.19, AWS's plugin had another name."""
COMPILING_SECONDS = 7200
"""Bound of slow phases, such as the first step. It is an estimate, because the compilation of these graphs
has not been measured."""
EXECUTION_SECONDS = 600
"""Bound of a graph, whose sums wait for the slowest process; the runtime's default is 30. AWS's pre-training
of BERT has this (aws-neuron-samples, dp_bert_hf_pretrain), and it is torch's with NCCL."""
LIBRARIES = ("/opt/amazon/efa/lib", "/opt/aws/neuron/lib")
"""Libraries of the node; an image has its own."""


def environment(*, efa: bool) -> dict[str, str]:
    """Return the environment of the processes.

    Args:
        efa: whether nodes talk by EFA. The variables are those of AWS Neuron's documentation, "How to prepare
            trn1.32xlarge for multi-node execution"; the last one only Amazon Linux 2 needs.
    """
    variables = {
        "PJRT_DEVICE": "NEURON",
        # Which products are in bf16 is the trainer's to say, by torch.autocast. A compilation that was
        # stopped is kept as one that failed, and would be no other's to try.
        "NEURON_CC_FLAGS": "--auto-cast=none --retry_failed_compilation",
        "NEURON_RT_EXEC_TIMEOUT": str(EXECUTION_SECONDS),
        SLOW_VARIABLE: str(COMPILING_SECONDS),
    }
    if efa:
        variables |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}
    return variables


def device_problems(given: int, giver: str, versions: dict[str, str], root: Path = Path("/")) -> list[str]:
    """Whether the devices that a job was given are there; notes the driver's version.

    Args:
        given: how many.
        giver: for messages.
        versions: that must be the same on all nodes; the driver's is added.
        root: of the file system.
    """
    driver = root / "sys/module/neuron/version"
    if driver.is_file():
        versions["driver"] = driver.read_text().strip()
    if (found := len(list((root / "dev").glob("neuron[0-9]*")))) < given:
        return [
            f"{giver} gives the job {given} Neuron devices there, /dev has {found}: is the driver loaded? "
            "neuron-ls"
        ]
    return []
