"""Templates of deployed stacks, as CloudFormation keeps them."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from tools.aws_session import is_absent


def deployed_template(cloudformation: Any, stack_name: str) -> dict[str, Any] | None:
    """The stack's present template; None if there is no such stack."""
    try:
        body = cloudformation.get_template(StackName=stack_name, TemplateStage="Original")["TemplateBody"]
    except ClientError as error:
        if is_absent(error):
            return None
        raise
    # boto3 parses JSON, which the CDK writes; the model behind it says string.
    return json.loads(body) if isinstance(body, str) else body
