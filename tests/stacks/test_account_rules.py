"""Accounts with rules of their own: a bootstrap qualifier, and limits of IAM roles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stacks.cluster_stacks import add_checks, add_stacks
from tests.stacks.endpoints import ENDPOINT_FILES, endpoint, synthesize_endpoint, template_in
from tests.stacks.synthesized import add_with_stand_in, load, new_app, read_templates, resources

BOUNDARY = "arn:aws:iam::123456789012:policy/platform/hpc-boundary"
IAM = {"permissions_boundary": BOUNDARY, "role_path": "/hpc/", "role_name_prefix": "hpc-"}


def roles(templates: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = [resources(template, "AWS::IAM::Role").values() for template in templates.values()]
    return [role["Properties"] for stack in found for role in stack]


@pytest.mark.parametrize("file", ["clusters/slurm.yaml", "clusters/eks.yaml"])
def test_assets_and_roles_follow_the_rules(file: str) -> None:
    """cdk-nag's findings, which name the bucket, would end the synthesis."""
    app = new_app(file)
    app.node.set_context("@aws-cdk/core:bootstrapQualifier", "myorg")
    add_with_stand_in(app, load(file, iam=IAM))
    add_checks(app)
    templates = read_templates(Path(app.synth().directory))
    text = json.dumps(templates)
    assert "cdk-myorg-assets-" in text and "/cdk-bootstrap/myorg/version" in text
    assert "hnb659fds" not in text
    names = [role["RoleName"] for role in roles(templates)]
    assert all(re.fullmatch(r"hpc-[\w-]{1,60}", name) for name in names)
    assert len(names) == len(set(names)) == text.count('"AWS::IAM::Role"') >= 4
    assert {(role["PermissionsBoundary"], role["Path"]) for role in roles(templates)} == {
        (BOUNDARY, "/hpc/")
    }


def test_names_differ_between_regions_and_clusters() -> None:
    def names(**changes: Any) -> set[str]:
        app = new_app("clusters/slurm.yaml")
        add_stacks(app, load("clusters/slurm.yaml", iam={"role_name_prefix": "hpc-"}, **changes))
        return {role["RoleName"] for role in roles(read_templates(Path(app.synth().directory)))}

    network = {"vpc": "new", "availability_zone_ids": ["use1-az4", "use1-az6"]}
    assert names().isdisjoint(names(region="us-east-1", network=network) | names(name="b" * 24))


def test_role_of_an_endpoint_follows_the_rules() -> None:
    template = template_in(synthesize_endpoint(endpoint(ENDPOINT_FILES[0], iam=IAM)))
    (role,) = roles({"EndpointStack": template})
    assert role["PermissionsBoundary"] == BOUNDARY and role["RoleName"].startswith("hpc-")
