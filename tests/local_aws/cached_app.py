"""The app as the CDK's command line calls it, but equal calls are synthesized once, to run many commands."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

READ = ("app.py", "lifecycle")
"""Files of the checkout that tests change, besides cluster files. This program runs in that checkout."""
WITHOUT_RULES = {"CDK_VALIDATION": "false"}
"""The CDK's own rules are not applied: their engine takes half of the time. See ``assert_accepted``."""
ALL_CLUSTER_FILES = "clusters"
"""Folder of the cluster files that the app may read if none is named."""


def main() -> None:
    environment = {name: value for name, value in os.environ.items() if name.startswith("CDK_")}
    out = Path(environment.pop("CDK_OUTDIR"))
    context = json.loads(environment["CDK_CONTEXT_JSON"])
    context.pop("aws:cdk:bundling-stacks", None)  # no asset is bundled; cdk destroy gives none
    keys = environment | {"CDK_CONTEXT_JSON": json.dumps(context, sort_keys=True)}
    digest = hashlib.sha256(repr(sorted(keys.items())).encode())
    for name in (*READ, context.get("cluster", ALL_CLUSTER_FILES)):
        for path in sorted([Path(name), *Path(name).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(repr((str(path), path.read_bytes())).encode())
    made = Path(".assemblies", digest.hexdigest()[:16])
    told = made / "stderr.txt"
    if not told.exists():
        command = [sys.executable, "app.py"]
        environment = os.environ | WITHOUT_RULES | {"CDK_OUTDIR": str(made.resolve())}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        told.write_text(done.stderr)
    sys.stderr.write(told.read_text())
    shutil.copytree(made, out, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
