"""torchrun of PyTorchJobs: ``python -m seqlm.launch.pod_torchrun [options of torchrun] -m MODULE ...``."""

from torch.distributed.run import main as torchrun

from .agent_exit import exit_after_signal


def main() -> None:
    with exit_after_signal():
        torchrun()


if __name__ == "__main__":
    main()
