"""Pre-train, fine-tune and query protein and language models.

    import seqlm

    model = seqlm.load("facebook/esm2_t6_8M_UR50D")
    model.embed(["MKTAYIAKQRQISFVKSHFSRQ"])  # (1, 320)

The names of ``seqlm`` are imported when they are used, because job supervisors import this package
with the standard library alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqlm.api import Model, load, sample_table, split_variants

__all__ = ["Model", "__version__", "load", "sample_table", "split_variants"]
__version__: str


def __getattr__(name: str) -> Any:
    if name in ("Model", "load", "sample_table", "split_variants"):
        from seqlm import api

        return getattr(api, name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("seqlm")
        except PackageNotFoundError:
            return "0+unknown"  # a folder on Python's path, as on the nodes of a cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
