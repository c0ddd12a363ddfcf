"""Tokenizers of published models: read as they are, or refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from seqlm.language.config import ChatConfig
from seqlm.language.prepare import prepare_chat
from seqlm.language.template import Template
from seqlm.runs.run_file import load_config
from tests.workloads.language.question_runs import write_run_file, write_table

BAR = "\N{FULLWIDTH VERTICAL LINE}"
START, END = (f"<{BAR}{word}▁of▁sentence{BAR}>" for word in ("begin", "end"))
USER = f"<{BAR}User{BAR}>"
ASSISTANT = f"<{BAR}Assistant{BAR}>"
CHAT_TEMPLATE = (
    f"{{{{ bos_token }}}}{{% for m in messages %}}{USER}{{{{ m['content'] }}}}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{{{ '<think>\\n' }}}}{{% endif %}}"
)
SHIPPED = Path("workloads/seqlm/configs/language/deepseek_r1_14b_medical.yaml")


@pytest.fixture(scope="module")
def distilled(tiny_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 whose tokenizer says, as DeepSeek-R1's distillations do, that it is Llama's."""
    folder = tmp_path_factory.mktemp("distilled") / "model"
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen)
    tokenizer.add_special_tokens({"bos_token": START, "eos_token": END, "pad_token": END})
    tokenizer.add_tokens([USER, ASSISTANT, "<think>", "</think>"])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    shutil.copy(tiny_qwen / "config.json", folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings |= {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "unk_token": None}
    path.write_text(json.dumps(settings))
    return folder


def shipped_chat() -> ChatConfig:
    chat = load_config(SHIPPED).chat
    assert chat is not None
    return chat


def test_the_shipped_prompt_is_that_of_the_chat_template(distilled: Path) -> None:
    chat = shipped_chat()
    question = "Does the heart hurt?"
    template = Template(chat, distilled)
    template.check([question])
    assert template.prompts([question]) == Template(replace(chat, prompt=None), distilled).prompts(
        [question]
    )
    assert template.missing_start is None


def test_tokens_begin_once_end_once_and_keep_their_spaces(distilled: Path) -> None:
    template = Template(shipped_chat(), distilled)
    tokenizer = template.tokenizer
    (prompt,) = template.tokens(template.prompts(["Does the heart hurt?"]))
    assert tokenizer.convert_ids_to_tokens(prompt[:2]) == [START, USER]
    assert prompt.count(tokenizer.bos_token_id) == 1
    (response,) = template.tokens(["It does.\n</think>\n\nExamine it."], ended=True)
    assert tokenizer.decode(response) == "It does.\n</think>\n\nExamine it." + END
    written = tokenizer.decode(response, skip_special_tokens=True)
    assert template.answer(written) == "Examine it.", (
        "the mark is no special token, which decoding leaves out"
    )


def test_a_tokenizer_that_loses_spaces_is_refused(tiny_qwen: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_qwen, folder)
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    path.write_text(json.dumps(settings))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "llama"  # of Qwen2, transformers knows what stands between words
    (folder / "config.json").write_text(json.dumps(config))
    run_file = write_run_file(tmp_path, folder, write_table(tmp_path / "questions.json"))
    with pytest.raises(
        ValueError, match=r"does not give back what it reads: 'Patient \d+ has .* comes back as"
    ):
        prepare_chat(load_config(run_file))


def test_reports_a_prompt_without_the_first_token(
    tiny_qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_qwen, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.add_bos_token = True
    tokenizer.save_pretrained(folder)
    run_file = write_run_file(tmp_path, folder, write_table(tmp_path / "questions.json"))
    prepare_chat(load_config(run_file))
    assert "note: the model's texts begin with <s>; chat.prompt does not" in capsys.readouterr().err
