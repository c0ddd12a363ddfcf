"""Session Manager's plugin, which the aws command starts for every session."""

import hashlib
import json
import platform
import shutil
import urllib.request
from pathlib import Path

from space import Space, SpaceError

TABLE = Path(__file__).with_name("session_plugin.json")
NAME = "session-manager-plugin"


def install_plugin(space: Space) -> None:
    """Download and install the plugin if the image lacks it, after verifying its checksum.

    Raises:
        SpaceError: if the download fails, or its checksum differs.
    """
    if shutil.which(NAME):
        return
    package = json.loads(TABLE.read_text())["packages"].get(platform.machine())
    if not package:
        raise SpaceError(
            f"there is no {NAME} for {platform.machine()}: start the space on another instance type"
        )
    try:
        with urllib.request.urlopen(package["url"], timeout=60) as response:
            data = response.read()
    except OSError as error:
        raise SpaceError(
            f"{package['url']} cannot be reached: {error}; without internet access, use an image with"
            f" {NAME}, or a login space"
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != package["sha256"]:
        raise SpaceError(
            f"{package['url']} has SHA-256 {digest}, not {package['sha256']}: it was not installed"
        )
    file = Path("/tmp/session-manager-plugin.deb")
    file.write_bytes(data)
    space.as_root("dpkg", "--install", str(file))
    file.unlink()
