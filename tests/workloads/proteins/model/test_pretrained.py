"""Models to start from: what cannot be read is said at once, with what to do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import huggingface_hub.constants
import pytest
from transformers import PretrainedConfig

from seqlm.proteins.model.pretrained import of_config, save_esm, starting_config, starting_weights
from seqlm.runs.run_file import ModelConfig

BOTH_FAMILIES = True


def test_a_hub_that_does_not_answer_gets_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    sleep = time.sleep
    asking = threading.current_thread()

    def sleep_elsewhere(seconds: float) -> None:
        assert threading.current_thread() is not asking, f"waits {seconds} s to try again"
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep_elsewhere)
    with pytest.raises(
        ValueError, match="Without a network: make train-ddp, and then MODEL="
    ) as raised:
        starting_config(ModelConfig(init_from="facebook/esm2_t6_8M_UR50D"))
    assert "http://127.0.0.1:9/facebook/esm2_t6_8M_UR50D" in str(raised.value)


def test_an_adapter_alone_is_no_model_to_start_from(
    tmp_path: Path, tiny_config: PretrainedConfig
) -> None:
    tiny_config.save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds an adapter and a head without the model"):
        starting_config(ModelConfig(init_from=str(tmp_path)))


def test_a_model_with_another_head_serves_as_an_encoder(
    tmp_path: Path, tiny_config: PretrainedConfig
) -> None:
    plain = of_config(tiny_config).sequence_classifier.plain
    classifier = plain(tiny_config)
    save_esm(tmp_path / "model", tiny_config, classifier.state_dict(), plain)
    model = ModelConfig(init_from=str(tmp_path / "model"))
    found = starting_weights(model, 0, encoder_only=True)
    encoder = of_config(tiny_config).encoder
    for name, value in classifier.state_dict().items():
        assert not name.startswith(encoder) or found[name].equal(value), name
    with pytest.raises(ValueError, match=r"lacks 'lm_head\..*; give a whole model"):
        starting_weights(model, 0)
