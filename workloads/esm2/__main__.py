"""``python -m workloads.esm2 --version``: what this installation is made of."""

from __future__ import annotations

import argparse

from .software_stack import software_stack

STAGES = "data, launch.local, train, evaluate, report"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workloads.esm2",
        description=f"ESM-2 training. Each stage is a module, python -m workloads.esm2.<stage>: {STAGES}.",
    )
    parser.add_argument("--version", action="store_true", help="print the software stack and stop")
    if not parser.parse_args().version:
        parser.print_help()
        return
    stack = software_stack()
    width = max(map(len, stack))
    for name, version in stack.items():
        print(f"{name:{width}}  {version or 'not found'}")


if __name__ == "__main__":
    main()
