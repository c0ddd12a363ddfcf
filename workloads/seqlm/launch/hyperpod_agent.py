"""HyperPod's elastic agent, the ``torchrun`` of HyperPodPyTorchJobs:
``python -m seqlm.launch.hyperpod_agent [options of hyperpodrun] -m MODULE ...``.

The agent's own command, hyperpodrun 1.1.3, does not start with torch 2.12 and later, because torchrun and the
agent both define ``--shutdown-timeout``. Here the agent's option replaces torchrun's. Everything else is the
agent's code.
"""

import os
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import get_args_parser


def main() -> None:
    # Imported here, because only the image has it: it pins an older torch.
    from hyperpod_elastic_agent import run as agent

    agent.register_hyperpod_rendezvous()
    parser = get_args_parser()
    for part in (parser, *parser._action_groups):
        part.conflict_handler = "resolve"
    agent.add_additional_hyperpod_args(parser)
    try:
        agent.run(parser.parse_args())
    except SignalException as error:
        # The processes have saved and ended. Python would wait for the agent's threads, which never end.
        print(f"ended by signal {error.sigval}", file=sys.stderr, flush=True)
        os._exit(128 + error.sigval)


if __name__ == "__main__":
    main()
