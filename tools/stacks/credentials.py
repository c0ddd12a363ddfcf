"""End with a one-line error if there are no AWS credentials, which the CDK reports late and unclearly.

``python -m tools.stacks.credentials [options of cdk deploy]`` sends no request to AWS.
"""

import argparse

from tools.aws_session import open_session, require_credentials
from tools.command_line import run_command

ANY_REGION = "us-east-1"
"""Credentials are the same in every region."""


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile")
    options, _ = parser.parse_known_args()
    require_credentials(open_session(region=ANY_REGION, profile=options.profile))
    return 0


if __name__ == "__main__":
    run_command(main)
