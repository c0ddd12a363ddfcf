"""Timer that deletes states in memory that ended training jobs have left on a worker."""

from node_setup.node import Node
from node_setup.service import FOLDER, run_unit

PROGRAM = "job_memory"
SERVICE = "job-memory.service"
TIMER = "job-memory.timer"


def install(node: Node) -> None:
    """Install the program, and start its timer.

    Raises:
        SetupError: if the timer does not start.
    """
    node.install(f"{FOLDER}/{PROGRAM}.py", node.template(f"collectors/{PROGRAM}.py"))
    changed = node.install_unit(SERVICE)
    run_unit(node, TIMER, changed=changed)
