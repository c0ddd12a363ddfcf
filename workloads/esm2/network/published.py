"""Published figures of all-reduce between nodes of a type: bus bandwidth by nccl-tests' ``all_reduce_perf``.

Of each source the largest message up to 4 GiB, as large as ours get. Types that are missing here have no
published figure of all their GPUs and all their EFA, as far as is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from .expectation import Published

_AWS = "github.com/aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
PUBLISHED: Mapping[str, Published] = {
    # Of a user, with versions of 2022.
    "ml.p4d.24xlarge": Published(57.20, 1 << 30, 2, "github.com/NVIDIA/nccl/issues/527, 2022-07-25"),
    "ml.p4de.24xlarge": Published(78.33, 2 << 30, 2, _AWS),
    "ml.p5.48xlarge": Published(465.87, 4 << 30, 2, _AWS),
}
