"""An account that was bootstrapped with a qualifier of its own, as central teams do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stacks.cluster_stacks import add_checks, add_stacks
from tests.stacks.synthesized import CHARTS, load, new_app, read_templates


@pytest.mark.parametrize("file", ["clusters/slurm.yaml", "clusters/eks.yaml"])
def test_assets_are_those_of_the_qualifier(file: str) -> None:
    """cdk-nag's findings, which name the bucket, would end the synthesis."""
    app = new_app(file)
    app.node.set_context("@aws-cdk/core:bootstrapQualifier", "myorg")
    add_stacks(app, load(file), chart_stand_ins=CHARTS)
    add_checks(app)
    text = json.dumps(read_templates(Path(app.synth().directory)))
    assert "cdk-myorg-assets-" in text and "/cdk-bootstrap/myorg/version" in text
    assert "hnb659fds" not in text
