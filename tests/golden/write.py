"""Write the golden templates anew: ``python -m tests.golden.write``. What changed is for a person to read."""

from __future__ import annotations

from tests.golden.normalised import GOLDEN, golden_files, studio_golden_files


def main() -> None:
    wanted = golden_files() | studio_golden_files()
    for old in set(GOLDEN.glob("*/*.json")) - set(wanted):
        old.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
