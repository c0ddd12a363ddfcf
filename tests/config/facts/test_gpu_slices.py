"""Slices of GPUs, as SageMaker and NVIDIA name them."""

from __future__ import annotations

import botocore.session
import pytest
from botocore.model import StringShape

from config.facts.gpu_slices import NO_QUOTA_TYPES, SLICED_TYPES, share_of_gpu, slices_of
from config.facts.instance_catalogue import INSTANCE_TYPES


def test_quotas_have_names_for_all_slices_and_no_others() -> None:
    model = botocore.session.get_session().get_service_model("sagemaker")
    ours = {
        found.quota_type
        for name in SLICED_TYPES
        if name not in NO_QUOTA_TYPES
        for found in slices_of(name).values()
    }
    shape = model.shape_for("MIGProfileType")
    assert isinstance(shape, StringShape)
    service = set(shape.enum)
    assert ours == service
    for name in NO_QUOTA_TYPES:
        assert service.isdisjoint(found.quota_type for found in slices_of(name).values())


@pytest.mark.parametrize("name", SLICED_TYPES)
def test_the_slices_of_a_gpu_fit_into_it(name: str) -> None:
    hardware = INSTANCE_TYPES[name]
    for found in slices_of(name).values():
        assert found.per_gpu * found.sevenths <= 7 and found.per_gpu * found.eighths <= 8
        compute, memory = found.profile.removesuffix("gb").split("g.")
        assert int(compute) == found.sevenths
        # The name has the memory in GB, rounded, and a GPU has a little more than its GiB say.
        assert int(memory) == pytest.approx(found.memory_gib(hardware), rel=0.08, abs=0.6)


def test_other_types_have_none() -> None:
    assert slices_of("ml.g5.8xlarge") == {} == slices_of("ml.p5.4xlarge")


def test_a_slice_is_a_share_of_a_gpu() -> None:
    assert share_of_gpu("3g.40gb", None) == 1 / 2
    assert share_of_gpu("1g.10gb", "ml.p4d.24xlarge") == 1 / 4
    assert share_of_gpu("1g.10gb", "ml.p5.48xlarge") == share_of_gpu("1g.10gb", None) == 1 / 7
    assert share_of_gpu("9g.1gb", None) == 0
