"""HyperPod's elastic agent, the ``torchrun`` of HyperPodPyTorchJobs:
``python -m seqlm.launch.hyperpod_agent [options of hyperpodrun] -m MODULE ...``.

The agent's own command, hyperpodrun 1.1.3, does not start with torch 2.12 and later, because torchrun and the
agent both define ``--shutdown-timeout``. Here the agent's option replaces torchrun's. Everything else is the
agent's code.
"""

from torch.distributed.run import get_args_parser

from .agent_exit import exit_after_signal


def main() -> None:
    # Imported here, because only the image has it: it pins an older torch.
    from hyperpod_elastic_agent import run as agent

    agent.register_hyperpod_rendezvous()
    parser = get_args_parser()
    for part in (parser, *parser._action_groups):
        part.conflict_handler = "resolve"
    agent.add_additional_hyperpod_args(parser)
    with exit_after_signal():
        agent.run(parser.parse_args())


if __name__ == "__main__":
    main()
