"""Table of the model families: its facts agree with the model classes, and it takes a third family."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import seqlm
from seqlm.commands.publish import license_of
from seqlm.proteins.families.family import ModelFamily
from seqlm.proteins.families.table import MODEL_FAMILIES, family_of, family_of_type, saved_config
from seqlm.proteins.model.pretrained import on_meta, save_esm, starting_config, starting_weights
from seqlm.runs.run_file import ModelConfig, RunFile
from tests.workloads.proteins.families.toy_family import TOY

WORKLOADS = Path(__file__).parents[4] / "workloads"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a third family in the table."""
    assert isinstance(MODEL_FAMILIES, dict)
    monkeypatch.setitem(MODEL_FAMILIES, TOY.name, TOY)


@pytest.fixture
def toy_folder(toy: None, tmp_path: Path) -> Path:
    """Model folder of an untrained toy."""
    model = ModelConfig(family="toy", size="1M")
    save_esm(tmp_path / "model", starting_config(model), starting_weights(model, seed=0))
    return tmp_path / "model"


def test_the_table_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import seqlm.proteins.families.table; "
        "print(*({'torch', 'numpy', 'transformers', 'yaml'} & set(sys.modules)))"
    )
    command = [sys.executable, "-I", "-c", code, str(WORKLOADS)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("family", [*MODEL_FAMILIES.values(), TOY], ids=lambda family: family.name)
def test_facts_agree_with_the_model_classes(family: ModelFamily, toy: None) -> None:
    size = next(iter(family.sizes))
    config = family.architecture().published(size)
    assert config.model_type == family.model_type
    assert family.shape_of_config(config.to_dict()) == family.published_shape(size)
    modules = dict(on_meta(config).named_modules())
    heads = [name for name in modules if name.endswith("contact_head")]
    assert heads == ([] if family.contact_head is None else [family.contact_head])
    for hub_id in family.proteingym:
        found = re.search(family.published_name, hub_id)
        assert hub_id.startswith(family.hub_prefix) and found and found[1] in family.sizes


def test_a_third_family_is_found_by_its_models(toy_folder: Path, tmp_path: Path) -> None:
    assert family_of(str(toy_folder)) == family_of("toys/toy_1M") == "toy"
    assert family_of(str(tmp_path / "not yet" / "toy_1M")) == "toy"
    assert family_of_type("toy-esm") is TOY
    assert saved_config(toy_folder)["model_type"] == "toy-esm"
    config = RunFile(name="a", model=ModelConfig(init_from=str(toy_folder)))
    assert (config.model.family, config.model.max_residues) == ("toy", 510)
    assert license_of("toys/toy_1M") == "cc0-1.0"


def test_a_third_family_answers(toy_folder: Path) -> None:
    """The long protein is above the family's longest, so it is read in windows."""
    model = seqlm.load(str(toy_folder), device="cpu", precision="fp32")
    proteins = ["MKTAYIAKQRQISFVKSHFSRQ", "MKTAYIAKQR" * 60]
    assert model.embed(proteins).shape == (2, 64)
    assert len(model.variants(proteins[0])) == 19 * len(proteins[0])
    with pytest.raises(ValueError, match="has no fitted contact head"):
        model.contacts(proteins[0])
    with pytest.raises(ValueError, match="allowed are 510 for contacts"):
        model.contacts(proteins[1])


def test_an_unknown_type_of_model_is_refused() -> None:
    assert family_of("toys/toy_1M") is None
    with pytest.raises(ValueError, match="a model of type 'toy-esm'; allowed are esm, esmc"):
        family_of_type("toy-esm")
    assert license_of("toys/toy_1M") is None and license_of(None) is None
