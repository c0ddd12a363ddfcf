"""Rows of the growth benchmark, in the order in which they run."""

from benchmarks.growth import clusters, inference, preparation, training
from benchmarks.growth.row import Row

ROWS: tuple[Row, ...] = (
    *preparation.ROWS,
    *training.ROWS,
    *inference.ROWS,
    *clusters.ROWS,
)
