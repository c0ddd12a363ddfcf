"""Model folders of strangers: no code runs, nothing outside is read, and nothing takes all memory."""

from __future__ import annotations

import ast
import gc
import json
import logging
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from seqlm.commands.evaluate import main as evaluate
from seqlm.commands.publish import main as publish
from seqlm.language.model import read_config
from seqlm.language.model_files import write_model
from seqlm.language.objective import _model
from seqlm.proteins.alphabet import encode
from seqlm.proteins.families.table import saved_architectures, saved_config
from seqlm.proteins.inference.engine import EMBEDDING, Engine
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.checksums import DamagedError, verified
from seqlm.training.command_line import one_line_errors
from seqlm.training.data.model_folder import MAX_LAYERS, check_files
from seqlm.training.objective import Place
from seqlm.training.packing import PackShape
from seqlm.training.processes import processes
from seqlm.training.scoring import NotFiniteError
from seqlm.training.strict_yaml import read_yaml_file
from tests.workloads.proteins.model_folders import write_checkpoint
from tests.workloads.training.training_runs import train_here

WEIGHTS = "model.safetensors"
SOURCES = Path(__file__).parents[3] / "workloads/seqlm"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A folder of somebody else: without checksums."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (folder / "SHA256SUMS").unlink()
    return folder


@pytest.fixture(scope="module")
def language_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language") / "model"
    write_model(folder, ["one two three"], 300, hidden=32, layers=1)
    return folder


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def one_line(error: Exception) -> str:
    text = str(error)
    assert "\n" not in text and len(text) < 1000, text
    return text


def embedding(model: Any) -> torch.Tensor:
    engine = Engine(model, device=torch.device("cpu"), dtype=torch.float32)
    return torch.from_numpy(engine.run([encode("MKTAYIAK")], EMBEDDING)[0])


def test_weights_that_are_replaced_later_change_no_answer(model: Path) -> None:
    """In place, as cp, scp and rsync --inplace write."""
    loaded = load_model(str(model))
    before = embedding(loaded)
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    assert str(model) not in maps, "a file that is cut would end the process"
    with (model / WEIGHTS).open("r+b") as file:
        file.write(os.urandom((model / WEIGHTS).stat().st_size))
    assert torch.equal(embedding(loaded), before)


def test_language_models_are_kept_in_memory_too(language_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(language_folder, tmp_path / "model"))
    with processes() as here:
        kept = _model(folder, folder, Place(here, PackShape(64, 64, 1), torch.float32))
    gc.collect()
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert sum(p.numel() for p in kept.parameters()) > 0


def evil_code(folder: Path, canary: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\n")


@pytest.mark.parametrize("answer", ["y", None])
def test_no_code_of_a_folder_runs(
    language_folder: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | None,
) -> None:
    """transformers asks on a terminal, unless the call says no."""
    asked: list[str] = []

    def replied(question: str = "") -> str:
        asked.append(question)
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", replied)
    canary = tmp_path / "canary"
    folder = Path(shutil.copytree(language_folder, tmp_path / "language"))
    for place in (folder, model):
        evil_code(place, canary)
        auto_map = {name: "evil.X" for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM")}
        change(place / "config.json", model_type="zzz", auto_map=auto_map)
    for read in (lambda: read_config(folder, 64), lambda: load_model(str(model))):
        with pytest.raises(ValueError, match=r"zzz|custom code") as raised:
            read()
        one_line(raised.value)
    change(model / "config.json", model_type="esm")
    load_model(str(model))
    assert not canary.exists() and asked == []


def test_every_call_of_transformers_refuses_code() -> None:
    calls = 0
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            is_auto = isinstance(owner, ast.Name) and owner.id.startswith("Auto")
            loads = node.func.attr in ("from_pretrained", "from_config")
            # PeftModel takes a model that is loaded already. for_model takes no folder.
            if not loads or (isinstance(owner, ast.Name) and owner.id == "PeftModel"):
                assert not is_auto or node.func.attr == "for_model", f"{file}:{node.lineno}"
                continue
            stated = {one.arg: ast.unparse(one.value) for one in node.keywords}
            assert stated.get("trust_remote_code") == "False", f"{file}:{node.lineno}"
            calls += 1
    assert calls >= 4


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "owner/kernel"},
        {"attn_implementation": "flash_attention_2"},
        {"_attn_implementation": "flash_attention_3"},
    ],
)
def test_a_named_attention_is_not_used(
    settings: dict[str, Any], model: Path, tiny_model: Path, language_folder: Path, tmp_path: Path
) -> None:
    change(model / "config.json", **settings)
    assert torch.equal(embedding(load_model(str(model))), embedding(load_model(str(tiny_model))))
    folder = Path(shutil.copytree(language_folder, tmp_path / "language"))
    change(folder / "config.json", **settings)
    read_config(folder, 64)


@pytest.mark.parametrize("method", ["gptq", "vptq", "bitsandbytes", "none such"])
def test_quantized_weights_are_refused(method: str, model: Path) -> None:
    change(model / "config.json", quantization_config={"quant_method": method})
    with pytest.raises(ValueError, match="describes quantized weights") as raised:
        load_model(str(model))
    one_line(raised.value)


def test_an_import_error_of_a_library_is_one_line(model: Path) -> None:
    with pytest.raises(ValueError, match="ImportError: needs a kernel") as raised, verified(model):
        raise ImportError("needs a kernel\nand more")
    one_line(raised.value)
    with pytest.raises(ModuleNotFoundError), verified(model):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")


def to_zero(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def to_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def to_outside(path: Path) -> None:
    outside = path.parent.parent / f"outside-{path.name}"
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("secret")
    path.symlink_to(outside)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "SHA256SUMS", "vocab.txt", "LICENSE"])
@pytest.mark.parametrize("plant", [to_zero, to_pipe, to_outside])
def test_devices_pipes_and_links_out_are_refused_at_once(
    plant: Callable[[Path], None], name: str, model: Path
) -> None:
    plant(model / name)
    with pytest.raises(ValueError, match=name) as raised:
        load_model(str(model))
    assert "outside its folder" in one_line(raised.value) or "a pipe or a device" in str(
        raised.value
    )
    assert plant is to_outside or name != "config.json" or saved_config(model) == {}


@pytest.mark.parametrize("name", ["checkpoint.json", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("plant", [to_zero, to_pipe, to_outside])
def test_they_are_refused_in_checkpoints(
    plant: Callable[[Path], None], name: str, tiny_config: Any, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoints", tiny_config)
    plant(checkpoint / name)
    with pytest.raises(DamagedError, match=name), verified(checkpoint):
        pytest.fail("the block would read it")


def to_secret(path: Path) -> None:
    path.symlink_to(path.parents[2] / "secret.jinja")


def to_other_folder(path: Path) -> None:
    other = path.parents[2] / "templates"
    path.parent.rename(other)
    path.parent.symlink_to(other)


@pytest.mark.parametrize("plant", [to_zero, to_pipe, to_secret, to_other_folder])
def test_they_are_refused_among_further_chat_templates(
    plant: Callable[[Path], None], language_folder: Path, tmp_path: Path
) -> None:
    """transformers reads this folder within the model's own."""
    (tmp_path / "secret.jinja").write_text("secret")
    folder = Path(shutil.copytree(language_folder, tmp_path / "model"))
    templates = folder / "additional_chat_templates"
    templates.mkdir()
    (templates / "rag.jinja").write_text("{{ messages }}")
    check_files(folder)
    plant(templates / "tool_use.jinja")
    with pytest.raises(ValueError, match=r"outside its folder|a pipe or a device") as raised:
        read_config(folder, 64)
    one_line(raised.value)


@pytest.mark.parametrize("place", ["../outside.safetensors", "/tmp/outside.safetensors", 7])
def test_an_index_names_no_file_elsewhere(place: Any, model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    save_file(weights, model.parent / "outside.safetensors", {"format": "pt"})
    (model / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, place)}
    (model / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="expected the name of a file in the same folder"):
        load_model(str(model))


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("config.json", {"transformers_weights": "../outside.safetensors"}),
        ("tokenizer_config.json", {"vocab_file": "/etc/passwd"}),
        ("tokenizer_config.json", {"tokenizer_file": "../tokenizer.json"}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.0.json"]}),
        ("tokenizer_config.json", {"fast_tokenizer_files": {"../tokenizer.4.0.json": ""}}),
    ],
)
def test_no_other_file_names_one_elsewhere(
    file: str, settings: dict[str, Any], model: Path
) -> None:
    change(model / file, **settings)
    with pytest.raises(ValueError, match="expected the name of a file in the same folder"):
        load_model(str(model))


def test_links_within_the_hub_s_cache_are_followed(tiny_model: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub/models--owner--name"
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(tiny_model.iterdir())):
        shutil.copyfile(path, repository / f"blobs/{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    load_model(str(snapshot))
    (tmp_path / "link").symlink_to(snapshot)
    load_model(str(tmp_path / "link"))
    (snapshot / "LICENSE").symlink_to("../../../../secret")
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ValueError, match="outside its folder"):
        check_files(snapshot)
    assert constants.HF_HUB_CACHE, "the hub's own layout, wherever it is"


def test_publish_copies_nothing_from_outside(run_file: Path, model: Path) -> None:
    secret = run_file.parent / "credentials"
    secret.write_text("aws_secret_access_key")
    settings = [
        f"inference.model={model}",
        "publish.license=mit",
        f"publish.folder={model.parent}/hub",
    ]
    config: RunFile = load_config(run_file, settings)
    for name in ("LICENSE", "x.json", "NOTICE.txt"):
        (model / name).symlink_to(secret)
        with pytest.raises(ValueError, match=f"{name} is a link to .*credentials"):
            publish(config)
        (model / name).unlink()
    assert not (model.parent / "hub").exists()
    publish(config)
    assert "aws_secret" not in "".join(
        path.read_text() for path in (model.parent / "hub").glob("*.json")
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": 1_000_000},
        {"num_labels": 1_000_000_000},
        {"num_labels": 9_999_999},
        {"hidden_size": 1 << 40},
        {"vocab_size": 1 << 33},
        {"intermediate_size": 9_999_999},
    ],
)
def test_sizes_that_lie_are_refused_before_memory_is_taken(
    sizes: dict[str, int], model: Path, language_folder: Path, tmp_path: Path
) -> None:
    change(model / "config.json", **sizes)
    with pytest.raises(ValueError, match=r"no known model has more than|cannot hold") as raised:
        load_model(str(model))
    one_line(raised.value)
    assert MAX_LAYERS < 1_000_000


def test_weights_with_holes_are_refused_before_they_are_hashed(model: Path) -> None:
    """A tebibyte that takes no place on the disk would be hashed for hours."""
    with (model / WEIGHTS).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"has 1,099,511,627,776 bytes, and its header describes"):
        load_model(str(model))
    with (model / WEIGHTS).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="but no header of safetensors"):
        load_model(str(model))
    (model / WEIGHTS).rename(model / "pytorch_model.bin")
    with pytest.raises(ValueError, match="but is no archive of torch"):
        load_model(str(model))


def test_a_large_file_that_is_no_weights_is_not_hashed(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    with (folder / "holes.dat").open("wb") as file:
        file.truncate(1 << 40)
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  holes.dat\n")
    with pytest.raises(DamagedError, match=r"holes\.dat has .* bytes and is no file of weights"):
        load_model(str(folder))


def test_a_vocabulary_of_another_order_is_refused(model: Path) -> None:
    vocabulary = model / "vocab.txt"
    assert vocabulary.exists()
    load_model(str(model))
    vocabulary.write_text(vocabulary.read_text().replace("L\nA\n", "A\nL\n"))
    with pytest.raises(ValueError, match="another order: 'A' in place of 'L'") as raised:
        load_model(str(model))
    one_line(raised.value)


def test_large_settings_and_run_files_are_refused(model: Path, tmp_path: Path) -> None:
    with (model / "config.json").open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match=r"config\.json has 1,073,741,824 bytes; allowed are"):
        load_model(str(model))
    run_file = tmp_path / "run.yaml"
    run_file.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="a pipe or a device"):
        read_yaml_file(run_file)
    run_file.unlink()
    with run_file.open("wb") as file:
        file.truncate(300_000_000)
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        read_yaml_file(run_file)


def test_a_diverged_model_gets_no_scores(run_file: Path, model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    weights["lm_head.bias"][5] = torch.nan
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    with pytest.raises(NotFiniteError):
        train_here(run_file, f"inference.model={model}", stage=evaluate)
    assert not list(run_file.parent.rglob("evaluation-*.json"))


def test_a_wrong_number_in_the_configuration_gives_no_scores(run_file: Path, model: Path) -> None:
    change(model / "config.json", layer_norm_eps=math.nan)
    with pytest.raises(NotFiniteError):
        train_here(run_file, f"inference.model={model}", stage=evaluate)


EVIL = "a\x1b]0;EVIL\x07\x1b[2J\x1b[31mRED\x9b"


def test_names_of_weights_reach_the_terminal_escaped_and_cut(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(model / WEIGHTS)
    extra = {f"{EVIL}{number}": torch.zeros(1) for number in range(300)}
    save_file(weights | extra, model / WEIGHTS, {"format": "pt"})
    load_model(str(model))
    told = capfd.readouterr().err
    assert "does not use 300 weights" in told and "EVIL" in told
    assert not set("\x1b\x07\x9b") & set(told) and len(told) < 4000


def test_loading_says_nothing_about_shards(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[logging.LogRecord] = []
    plans = logging.getLogger("transformers.distributed.tensor_parallel")
    monkeypatch.setattr(plans, "handle", records.append)
    load_model(str(model))
    assert not records
    assert logging.getLogger("transformers.modeling_utils").filters == []


@pytest.mark.parametrize("names", [[5], {"a": 1}, "EsmForMaskedLM"])
def test_what_is_no_list_of_names_of_classes_is_none(names: Any, model: Path) -> None:
    change(model / "config.json", architectures=names)
    assert saved_architectures(model) == []
    with pytest.raises(ValueError, match=r"a model of the kind|cannot be read as a model"):
        load_model(str(model))


def test_the_name_of_a_class_is_escaped_and_cut(model: Path) -> None:
    change(model / "config.json", architectures=[EVIL + "A" * 100_000])
    with pytest.raises(ValueError, match=r"a model of the kind .*EVIL") as raised:
        load_model(str(model))
    assert "\x1b" not in one_line(raised.value)


def test_what_libraries_log_and_tracebacks_are_escaped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    library = logging.getLogger("a library")
    library.addHandler(handler)
    with pytest.raises(SystemExit), one_line_errors():
        library.warning("the weights %s\nare missing", EVIL)
        print(warnings.formatwarning(EVIL, UserWarning, "library.py", 1), file=sys.stderr)
        raise KeyError(EVIL)
    library.removeHandler(handler)
    told = capfd.readouterr().err
    assert "Traceback" in told and "\nare missing" in told and told.count("EVIL") >= 3
    assert not set("\x1b\x07\x9b") & set(told)
