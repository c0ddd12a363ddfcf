"""Settings of pip as environment variables of uv.

uv installs what pip would install, but reads neither pip's files nor its variables. A machine that reaches
its package index by a setting of pip needs that setting for uv as well.

Standard library only, because image builds use this module with the base image's Python.
"""

import ast
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""Sections of pip's settings that apply to ``pip install``. Later sections replace values of earlier ones."""
ALWAYS = {
    # pip takes the best version of all indexes. By default, uv takes the first index that has the package.
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    # The interpreter is given, so uv never has to look for one.
    "UV_PYTHON_DOWNLOADS": "never",
}
RENAMED = {
    "break-system-packages": "UV_BREAK_SYSTEM_PACKAGES",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "index-url": "UV_DEFAULT_INDEX",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""Variables of uv with the value that pip has."""
LISTS = {
    "constraint": "UV_CONSTRAINT",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
}
"""Variables of uv with a list that spaces separate, as in pip."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY")
CERTIFICATE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of other programs with certificates that pip reads if it has no setting, and uv does not."""
FORMATS = ("only-binary", "no-binary")
"""Settings that restrict packages to wheels or to source archives."""
FALSE = frozenset({"n", "no", "f", "false", "off", "0"})
"""Values of a switch that pip reads as off."""


def parse(listing: str) -> dict[str, str]:
    """Return the settings that apply to ``pip install``.

    Args:
        listing: output of ``pip config list``: lines of ``section.name='value'``.
    """
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in by_section:
            by_section[section][name] = str(ast.literal_eval(value))
    settings: dict[str, str] = {}
    for section in SECTIONS:
        # An empty value does not hide that of an earlier section. pip ignores it as well.
        settings |= {name: value for name, value in by_section[section].items() if value}
    return settings


def uv_variables(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return uv's environment variables for the settings of pip.

    Args:
        settings: settings of pip that ``parse`` returns.
        environment: environment variables of this process.
    """
    variables = dict(ALWAYS)
    for name, variable in RENAMED.items():
        if name in settings:
            variables[variable] = settings[name]
    for name, variable in LISTS.items():
        if name in settings:
            variables[variable] = " ".join(settings[name].split())
    if "find-links" in settings:
        places = [os.path.expanduser(place) for place in settings["find-links"].split()]
        variables["UV_FIND_LINKS"] = ",".join(places)
    if "proxy" in settings:
        variables |= dict.fromkeys(PROXIES, settings["proxy"])
    if "client-cert" in settings:
        variables["SSL_CLIENT_CERT"] = os.path.expanduser(settings["client-cert"])
    given = [settings.get("cert")]
    if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & environment.keys():  # uv reads these itself
        given += [environment.get(name) for name in CERTIFICATE_VARIABLES]
    certificates = next((os.path.expanduser(path) for path in given if path), None)
    if certificates is not None:
        variables["SSL_CERT_DIR" if Path(certificates).is_dir() else "SSL_CERT_FILE"] = certificates
    else:
        # pip trusts the certificates of the operating system.
        variables["UV_SYSTEM_CERTS"] = "true"
    if _is_on(settings.get("no-cache-dir", "no")):
        variables["UV_NO_CACHE"] = "true"
    # pip reads PIP_NO_COMPILE=no as "do not compile".
    compiles = settings.get("compile", settings.get("no-compile", "yes"))
    variables["UV_COMPILE_BYTECODE"] = "true" if _is_on(compiles) else "false"
    return variables


def uv_arguments(settings: Mapping[str, str], options: Sequence[str] = ()) -> list[str]:
    """Return options of ``uv pip install`` for settings that have no variable.

    Args:
        settings: settings of pip that ``parse`` returns.
        options: options of this call, which come before the settings. uv takes none of them twice.
    """
    found = []
    if _is_on(settings.get("no-index", "no")) and "--no-index" not in options:
        found.append("--no-index")
    if _is_on(settings.get("pre", "no")) and "--pre" not in options:
        found.append("--pre")
    if not any(f"--{name}" in options for name in FORMATS):
        for name in FORMATS:
            for value in settings.get(name, "").replace(",", " ").split():
                found += [f"--{name}", value]
    return found


def _is_on(value: str) -> bool:
    return value.lower() not in FALSE
