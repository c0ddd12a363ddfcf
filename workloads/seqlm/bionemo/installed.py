"""Entry points of an installed BioNeMo, and a check that they accept the project's command lines.

``python -m seqlm.bionemo.installed`` reads their source code. The build of docker/bionemo runs it.
"""

import ast
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from seqlm.runs.run_file import load_config
from seqlm.training.command_line import RunError

from .command import Data, Devices, EntryPointName, arguments, conversion, entry_point_of
from .files import ExportFiles

OPTIONS_FILE = Path(__file__).with_name("options.json")
"""File with the command lines that BioNeMo's entry points accept."""
EXAMPLES = (
    ("esm2_650m.yaml", ()),
    ("bionemo/membrane_lora.yaml", ()),
    (
        "bionemo/membrane_lora.yaml",
        ("task.kind=residue", "task.classes=[C, E, H]", "task.table=[t.csv]"),
    ),
)
"""Run files and overrides, one for each form of the command lines."""
DATA_MODULE = "bionemo.esm2.model.finetune.datamodule"
"""BioNeMo's module that reads the data of fine-tuning."""


@cache
def recorded() -> dict[str, Any]:
    """Return the contents of ``OPTIONS_FILE``."""
    return dict(json.loads(OPTIONS_FILE.read_text()))


def recorded_release() -> str:
    """Return the release of BioNeMo Framework whose command lines are recorded."""
    return str(recorded()["release"])


def require() -> None:
    """Raise RunError if BioNeMo is not installed."""
    # A folder on the path that is called bionemo would be a package, too.
    if not importlib.util.find_spec("bionemo") or not importlib.util.find_spec("bionemo.esm2"):
        raise RunError(
            "BioNeMo is not installed here: it is in the image that make image FRAMEWORK=bionemo builds "
            f"({recorded_release()}). On a cluster: make train-bionemo TARGET=slurm IMAGE=<it>, or TARGET=eks"
            "; on a machine with GPUs: docs/bionemo.md"
        )


def run_entry_point(name: EntryPointName, words: Sequence[str]) -> None:
    """Call an entry point in this process, as its own program does.

    Args:
        name: name of the entry point.
        words: arguments of its command line.

    Raises:
        RunError: if BioNeMo is not installed, or the program exits with another status.
    """
    require()
    sys.argv = [name, *words]
    entry = recorded()["entry_points"][name]
    function: Callable[[], Any] = getattr(
        importlib.import_module(entry["module"]), entry["function"]
    )
    try:
        function()
    except SystemExit as ended:
        # typer's programs end like this, and NeMo's PreemptionCallback (nemo.lightning) after it has saved.
        if ended.code:
            raise RunError(
                f"BioNeMo's {name} ended with {ended.code}; its lines above say why"
            ) from None


def source_of(module: str) -> ast.Module:
    """Parse a module of BioNeMo without importing it, because an import needs a GPU's driver.

    Raises:
        ValueError: if the module does not exist.
    """
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, *parts).with_suffix(".py")
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    raise ValueError(f"{module} is not there: this is another release of BioNeMo")


def numbers_classes_once() -> bool:
    """Return whether validation uses the class numbers of training, as in newer releases.

    Older releases number the classes of validation on their own.
    """
    try:
        source = source_of(DATA_MODULE)
    except ValueError:
        return False
    names = [node for node in ast.walk(source) if isinstance(node, ast.Attribute)]
    return any(name.attr == "label_tokenizer" and isinstance(name.ctx, ast.Store) for name in names)


def options_in(source: ast.Module) -> set[str]:
    """Return the names of the options that a module defines with ``argparse``."""
    return {
        word.value
        for call in ast.walk(source)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }


def problems() -> list[str]:
    """List the options and commands of the project that the installed BioNeMo does not accept."""
    folder = Path(__file__).parents[1] / "configs"
    entries = recorded()["entry_points"]
    missing: list[str] = []
    data = Data(ExportFiles(Path("data")), num_validation=100_000, num_classes=2)
    for file, overrides in EXAMPLES:
        config = load_config(folder / file, overrides)
        name = entry_point_of(config)
        devices = Devices(num_nodes=1, gpus_per_node=8)
        given = {word.partition("=")[0] for word in arguments(config, devices, data)}
        accepted = options_in(source_of(entries[name]["module"]))
        missing += [f"{name} has no {option}" for option in sorted(given - accepted)]
    converter = source_of(entries["convert"]["module"])
    functions = {node.name for node in ast.walk(converter) if isinstance(node, ast.FunctionDef)}
    wanted = {
        conversion("a", Path("b"), to_bionemo=flag)[0].replace("-", "_") for flag in (True, False)
    }
    missing += [f"convert has no {function}" for function in sorted(wanted - functions)]
    return missing


def main() -> int:
    """Check the installed BioNeMo, and return the exit status."""
    try:
        found = problems()
    except ValueError as error:
        found = [str(error)]
    if found:
        print(
            f"error: the installed BioNeMo is not the one that is recorded ({recorded_release()}):\n  "
            + "\n  ".join(found),
            file=sys.stderr,
        )
        return 1
    print(f"BioNeMo takes the command lines, which are recorded for {recorded_release()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
