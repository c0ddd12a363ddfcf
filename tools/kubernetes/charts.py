"""Fetch the Helm charts of EKS clusters into .charts, with the hashes of manifests/charts.json.

A chart consists of a folder of a git repository at a commit, and of packaged charts. An existing, unchanged
chart is kept. A new or changed chart is put in place when it is complete, so that an interrupted run leaves
no incomplete chart there, and the next run continues.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import yaml

from config.cluster_files import DEFAULT_CLUSTER_FILES
from config.eks_cluster import EksCluster, has_slices
from config.reading.loader import load_eks_cluster
from manifests.chart_values import chart_values
from manifests.charts import (
    CACHE,
    TABLE,
    Archive,
    Chart,
    GitFolder,
    content_sha256,
    files_folder,
    files_of,
    load_charts,
    lock_file,
    problem_of,
    write_lock,
)
from manifests.gpu_operator import CHART as GPU_OPERATOR
from manifests.gpu_operator import gpu_operator_values
from manifests.public_images import images_of, is_known, repository_address
from seqlm.training.whole_file import move_into_place
from tools.archives import SECONDS_WITHOUT_DATA, download
from tools.command_line import CommandParser, run_command
from tools.json_output import add_json_option, publish
from tools.kubernetes.kubectl import find_program, run_helm

GIT_SECONDS = 900
"""Timeout of a git command; a repository's commit has some MB."""
PROBE_SECONDS = 8
"""Timeout of the check, at a synthesis, that git's server answers."""
ELSEWHERE = (
    "git and the download use https_proxy; without internet on this machine, run make charts on another one "
    "and copy .charts from there"
)
_GIT_SETTINGS = {
    # The files have the bytes of the commit, independent of the user's settings for line ends.
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.attributesFile": os.devnull,
    # Nothing may run in the background of a folder that is about to be removed.
    "gc.auto": "0",
    "maintenance.auto": "false",
    # A stalled transfer ends.
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": str(SECONDS_WITHOUT_DATA),
}
_OTHER_REPOSITORY = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
)
"""Environment variables that name another repository, if a git hook runs this program."""
HYPERPOD = "hyperpod"
"""Chart with values that follow from the cluster file."""
EXAMPLE_ACCOUNT = "123456789012"
"""Account in the address of the image repository, which stands for the real one in a rendering."""
Values = dict[str, Any]
UNFINISHED = "unfinished-"
"""Prefix of a run's temporary folder, which a killed run leaves behind."""


def main() -> int:
    parser = CommandParser(description="Fetch the Helm charts that EKS clusters install.")
    parser.add_argument(
        "--cluster",
        type=Path,
        default=DEFAULT_CLUSTER_FILES["eks"],
        metavar="FILE",
        help="render HyperPod's chart with the values of this cluster file (%(default)s)",
    )
    parser.add_argument(
        "--table",
        type=Path,
        default=TABLE,
        metavar="FILE",
        help="table of the charts (%(default)s)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=CACHE,
        metavar="DIR",
        help="folder of the charts (%(default)s)",
    )
    add_json_option(parser)
    options = parser.parse_args()
    cluster = load_eks_cluster(options.cluster)
    bring_charts(cluster, table=options.table, cache=options.cache)
    publish(folder=str(options.cache), charts=list(needed_charts(cluster, options.table)))
    return 0


def needed_charts(cluster: EksCluster, table: Path = TABLE) -> dict[str, Chart]:
    """Return the charts of the table that the cluster installs, by name."""
    return {
        name: chart
        for name, chart in load_charts(table).items()
        if name != GPU_OPERATOR or has_slices(cluster)
    }


def bring_charts(cluster: EksCluster, *, table: Path = TABLE, cache: Path = CACHE) -> None:
    """Fetch all charts that the cluster needs and that are not in the cache.

    Raises:
        ValueError: if a chart cannot be fetched, or differs from the table.
    """
    try:
        with _alone_in(cache):
            for name, chart in needed_charts(cluster, table).items():
                _bring(name, chart, cache, cluster)
    except OSError as error:
        raise ValueError(
            f"{error.filename or cache}: {error.strerror}; nothing unfinished was kept, run make charts again"
        ) from None


def bring_missing(cluster: EksCluster, *, table: Path = TABLE, cache: Path = CACHE) -> None:
    """Fetch the charts that a synthesis lacks, if their servers answer within PROBE_SECONDS.

    Print errors instead of raising them: the other stacks of the synthesis need no chart. Without a network,
    print nothing: the stack that needs the chart reports that it is missing, if that stack is selected.
    """
    needed = needed_charts(cluster, table).items()
    charts = [chart for name, chart in needed if problem_of(name, chart, cache)]
    if charts and all(_answers(chart.git) for chart in charts):
        try:
            # The CDK may print a template to standard output.
            with redirect_stdout(sys.stderr):
                bring_charts(cluster, table=table, cache=cache)
        except ValueError as error:
            print(error, file=sys.stderr)


def _answers(source: GitFolder) -> bool:
    try:
        _git(Path.cwd(), "ls-remote", source.repository, "HEAD", to=source, seconds=PROBE_SECONDS)
    except ValueError:
        return False
    return True


@contextmanager
def _alone_in(cache: Path) -> Iterator[None]:
    """Create and lock the folder, and remove the temporary folders of killed runs."""
    cache.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another make charts is running in {cache}: wait for its end") from None
    else:
        for left_folder in cache.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left_folder)
        yield
    finally:
        os.close(descriptor)


def _bring(name: str, chart: Chart, cache: Path, cluster: EksCluster) -> None:
    if problem_of(name, chart, cache) is None:
        print(f"{name}: there already, unchanged")
        return
    archives = [fetch_archive(archive, cache / "archives") for archive in chart.archives]
    work = Path(mkdtemp(prefix=UNFINISHED, dir=cache))
    try:
        print(
            f"{name}: {chart.git.folder} of {chart.git.repository} at {chart.git.commit}",
            flush=True,
        )
        scratch = work / "git"
        whole = work / "whole"
        scratch.mkdir()
        whole.mkdir()
        files = files_folder(work, whole.name)
        content = fetch_folder(chart.git, files, scratch)
        print(f"{name}: the folder of the commit has content_sha256 {content}")
        # helm reads the charts that a chart depends on from this folder.
        (files / "charts").mkdir(exist_ok=True)
        for archive in archives:
            shutil.copyfile(archive, files / "charts" / archive.name)
        for note in make_self_contained(files / "Chart.yaml", chart):
            print(f"{name}: {note}")
        hashes = files_of(files)
        target = cache / name
        _check_with_helm(name, files, cache, cluster)
        write_lock(lock_file(work, whole.name), chart, hashes)
        if target.exists():
            target.rename(work / "replaced")
        move_into_place(whole, target)
        print(f"{name}: {len(hashes)} files in {target}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def make_self_contained(chart_file: Path, chart: Chart) -> list[str]:
    """Rewrite Chart.yaml so that helm looks for nothing outside the chart's folder.

    Dependencies get the version of the table, because helm installs a packaged chart with another version
    than that of Chart.yaml even if its switch is off. Chart.lock is deleted, because it describes the former
    Chart.yaml.

    Returns:
        Changes that a reader of the upstream chart would not expect.

    Raises:
        ValueError: if the table and the external dependencies of Chart.yaml differ.
    """
    try:
        document = yaml.safe_load(chart_file.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"{chart.git.folder} of {chart.git.repository} has no Chart.yaml"
        ) from None
    archives = {archive.name: archive for archive in chart.archives}
    kept = []
    notes = []
    unknown = []
    for dependency in document.get("dependencies", []):
        name = dependency["name"]
        repository = dependency.get("repository", "")
        is_inside = chart_file.with_name("charts").joinpath(name).is_dir()
        if not repository or repository.startswith("file://") or is_inside:
            kept.append(dependency)
            packed = chart_file.with_name("charts") / f"{name}-{dependency.get('version')}.tgz"
            if packed.exists() and packed.with_name(name).is_dir():
                packed.unlink()
                notes.append(
                    f"without {packed.name}: helm would use it or the folder {name}, at random"
                )
        elif name in chart.left_out:
            notes.append(f"without {name}: {chart.left_out[name]}")
        elif name in archives:
            version = archives.pop(name).version
            upstream = str(dependency.get("version"))
            if upstream.removeprefix("v") != version.removeprefix("v"):
                notes.append(f"{name} {version} of the table; Chart.yaml has {upstream}")
            others = {key: value for key, value in dependency.items() if key != "repository"}
            kept.append({**others, "version": version})
        else:
            unknown.append(f"{name} {dependency.get('version')} of {repository}")
    if unknown:
        raise ValueError(
            f"Chart.yaml depends on {', '.join(unknown)}, which the table lacks: add an archive, or a "
            "reason to left_out"
        )
    if archives:
        raise ValueError(
            f"the table has {', '.join(archives)}, but Chart.yaml has no such external dependency: remove it"
        )
    chart_file.write_text(yaml.safe_dump({**document, "dependencies": kept}, sort_keys=False))
    chart_file.with_name("Chart.lock").unlink(missing_ok=True)
    return notes


def _check_with_helm(name: str, folder: Path, cache: Path, cluster: EksCluster) -> None:
    """Refuse a chart that helm cannot render, and print helm's remarks on style, which concern upstream."""
    helm = find_program("helm", cache)
    if helm is None:
        print(
            f"{name}: not checked, because helm is not on the PATH; the package's helm needs Linux x86-64"
        )
        return
    # The check uses the cluster's values, and never the chart's own defaults.
    values: Values = {}
    repository = repository_address(cluster, EXAMPLE_ACCOUNT)
    if name == HYPERPOD:
        values = chart_values(cluster, repository)
    elif name == GPU_OPERATOR:
        values = gpu_operator_values(cluster, repository)
    rendered = run_helm(
        helm, "template", name, str(folder), "--namespace=kube-system", values=values
    )
    if rendered.returncode != 0:
        raise ValueError(f"helm cannot render chart {name}: {' '.join(rendered.stderr.split())}")
    linted = run_helm(helm, "lint", "--quiet", str(folder), values=values)
    if linted.returncode != 0:
        print(f"{name}: helm lint says:\n{linted.stdout}{linted.stderr}", file=sys.stderr)
    if name == HYPERPOD:
        remarks = unexpected_parts(folder / "Chart.yaml", values, rendered.stdout)
        for remark in [*remarks, *unknown_images(rendered.stdout, cluster.region)]:
            print(f"{name}: WARNING: {remark}", file=sys.stderr)


def unexpected_parts(chart_file: Path, values: Values, rendered: str) -> list[str]:
    """Return remarks on parts that the chart installs without a switch, and on switches without an effect.

    helm writes the template of each object before it: ``# Source: <chart>/charts/<part>/...``.
    """
    chart = yaml.safe_load(chart_file.read_text())
    sources = set(re.findall(r"^# Source: (\S+)", rendered, re.MULTILINE))
    prefix = f"{chart['name']}/charts/"
    of_parts = {source for source in sources if source.startswith(prefix)}
    installed = {source.removeprefix(prefix).partition("/")[0] for source in of_parts}
    remarks = []
    if others := sorted(sources - of_parts):
        remarks.append(f"it installs objects that belong to none of its parts: {', '.join(others)}")
    for dependency in chart.get("dependencies", []):
        part = dependency.get("alias", dependency["name"])
        wanted = _switch(values, dependency.get("condition", ""))
        if part in installed and wanted is None:
            remarks.append(f"it installs {part}, which manifests/chart_values.py does not switch")
        elif wanted is not None and wanted != (part in installed):
            remarks.append(f"{part} is switched {'on' if wanted else 'off'}, which has no effect")
    return remarks


def unknown_images(rendered: str, region: str) -> list[str]:
    """Return remarks on images that nodes without internet access could not get."""
    objects = [document for document in yaml.safe_load_all(rendered) if document]
    return [
        f"its image {image} is not in manifests/public_images.py, so it would not be copied"
        for image in images_of(objects)
        if not is_known(image, region)
    ]


def _switch(values: Values, condition: str) -> bool | None:
    """Return the value at ``a.b.c``; None if it is missing."""
    found: Any = values
    for key in condition.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, bool) else None


def fetch_folder(source: GitFolder, target: Path, scratch: Path) -> str:
    """Fetch a folder of a git repository at a commit.

    git compares every object with its hash, starting at the commit, so the content does not depend on
    branches.

    Args:
        source: repository, commit and folder.
        target: path that the folder gets.
        scratch: empty folder for git.

    Returns:
        ``content_sha256`` of the folder.

    Raises:
        ValueError: if git is missing, the commit or the folder cannot be fetched, or the content differs from
            the table.
    """
    repository = scratch / "repository"
    files = scratch / "files"
    files.mkdir()
    _git(scratch, "init", "--quiet", "--bare", repository.name, to=source)
    _git(repository, "fetch", "--depth=1", "--no-tags", source.repository, source.commit, to=source)
    _git(
        repository,
        f"--work-tree={files}",
        "checkout",
        source.commit,
        "--",
        source.folder,
        to=source,
    )
    (files / source.folder).rename(target)
    content = content_sha256(files_of(target))
    if source.content_sha256 not in (None, content):
        raise ValueError(
            f"{source.folder} at {source.commit[:12]} has content_sha256 {content}, the table has "
            f"{source.content_sha256}; it was not kept. If the commit in the table is new, compare the files "
            "and record the new value"
        )
    return content


def _git(folder: Path, *arguments: str, to: GitFolder, seconds: int = GIT_SECONDS) -> None:
    """Run git in a folder; ``to`` is the remote folder, for error messages."""
    settings: list[str] = []
    for name, value in _GIT_SETTINGS.items():
        settings += ["-c", f"{name}={value}"]
    environment = {
        name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY
    }
    # Without a prompt for a password, a repository that does not exist is an error and not a wait.
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1"}
    title = f"git of {to.repository} at {to.commit[:12]}"
    # A terminal shows git's own progress and messages, but not those of a probe.
    is_shown = sys.stderr.isatty() and seconds > PROBE_SECONDS
    try:
        subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if is_shown else subprocess.PIPE,
            text=True,
            timeout=seconds,
            check=True,
        )
    except FileNotFoundError:
        raise ValueError(
            "git is missing: install it (Debian, Ubuntu: apt-get install git)"
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{title} took more than {seconds} s; run make charts again") from None
    except subprocess.CalledProcessError as error:
        reason = "as above" if is_shown else " ".join(error.stderr.split())
        raise ValueError(f"{title} failed: {reason}; {ELSEWHERE}") from None


def fetch_archive(archive: Archive, folder: Path) -> Path:
    """Return the path of a packaged chart in ``folder``; fetch the chart if it is missing.

    Raises:
        ValueError: if it cannot be fetched, or has another checksum than the table.
    """
    path = folder / f"{archive.name}-{archive.version}.tgz"
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == archive.sha256:
        return path
    print(f"{archive.name} {archive.version}: from {archive.url}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    changed = (
        "the expected checksum is that of the table; the file was not kept. Either a proxy changes files, or "
        "someone replaced the chart: read its publisher's index.yaml before you change the table"
    )
    download(archive.url, path, archive.sha256, unreached=ELSEWHERE, changed=changed)
    return path


if __name__ == "__main__":
    run_command(main)
