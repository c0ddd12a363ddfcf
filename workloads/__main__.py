"""Former name of the command ``python -m seqlm``."""

import sys

if __name__ == "__main__":
    sys.exit(
        f"error: python -m workloads is now: python -m seqlm {' '.join(sys.argv[1:])}".rstrip()
    )
