"""Pre-train, fine-tune and query protein and language models.

    import seqlm

    model = seqlm.load("facebook/esm2_t6_8M_UR50D")
    model.embed(["MKTAYIAKQRQISFVKSHFSRQ"])  # (1, 320)

The names of ``seqlm`` are imported when they are used, because job supervisors import this package
with the standard library alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqlm.api import (
        Model,
        contact_precision,
        load,
        read_structure,
        sample_structure,
        sample_table,
        scorecard,
        split_variants,
    )

__all__ = [
    "Model",
    "__version__",
    "contact_precision",
    "load",
    "read_structure",
    "sample_structure",
    "sample_table",
    "scorecard",
    "split_variants",
]
__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("seqlm")
        except PackageNotFoundError:
            return "0+unknown"  # a folder on Python's path, as on the nodes of a cluster
    if name in __all__:
        from seqlm import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
