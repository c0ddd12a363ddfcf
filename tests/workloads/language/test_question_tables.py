"""Preparation of conversations from tables, and the message of each possible mistake."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub.utils import filter_repo_objects

from seqlm.language import kinds
from seqlm.language.config import ChatConfig
from seqlm.language.conversations import ConversationSplit
from seqlm.language.model import read_config
from seqlm.language.model_files import LEFT_OUT_FILES, MODEL_FILES, fetch_model, published_as
from seqlm.language.prepare import is_prepared, prepare_chat
from seqlm.language.table import QUESTIONS, read_conversations
from seqlm.language.template import Template
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.data.manifest import Manifest
from seqlm.training.data.workspace import source_file
from tests.workloads.language.question_runs import rows, write_run_file, write_table
from tools.plan.model_size import shape_of

CONFIGS = Path(__file__).parents[3] / "workloads/seqlm/configs/language"


def prepared_texts(config: RunFile) -> dict[str, list[tuple[str, str]]]:
    prepare_chat(config)
    return {
        name: ConversationSplit(config.data.path, name).texts(1000)
        for name in ("train", "validation", "test")
    }


def written(path: Path, found: list[dict[str, str]]) -> Path:
    """A table in the format that its name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), path)
    elif path.suffix == ".csv":
        quoted = [[f'"{cell}"' for cell in row.values()] for row in found]
        path.write_text("\n".join(",".join(line) for line in [list(found[0]), *quoted]) + "\n")
    elif path.name.endswith(".jsonl.gz"):
        lines = [json.dumps(row, ensure_ascii=False) for row in found]
        path.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    else:
        write_table(path, found)
    return path


def test_formats_and_the_order_of_rows_make_no_difference(tiny_qwen: Path, tmp_path: Path) -> None:
    results = []
    for number, name in enumerate(("a.json", "b.jsonl.gz", "c.csv", "d.parquet")):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = rows(60) if number % 2 else rows(60)[::-1]
        # A separator of lines to Unicode, and none to JSON.
        found = [{**row, "Response": f"{row['Response']}\u2028Now."} for row in found]
        config = load_config(write_run_file(folder, tiny_qwen, written(folder / name, found)))
        prepared_texts(config)
        split = Path(config.data.path) / "train"
        results.append([source_file(path, path.name) for path in sorted(split.iterdir())])
    assert results[0] and all(result == results[0] for result in results)


def test_a_question_is_in_one_split_and_repetitions_are_dropped(
    tiny_qwen: Path, tmp_path: Path
) -> None:
    again = [
        {
            **row,
            "Question": f"  {row['Question'].upper()}",
            "Response": f"{row['Response']} Or not.",
        }
        for row in rows(90)
    ]
    table = write_table(tmp_path / "questions.json", [*rows(90), *rows(30), *again])
    config = load_config(write_run_file(tmp_path, tiny_qwen, table), ["data.test_fraction=0.2"])
    parts = prepared_texts(config)
    seen = [{question.strip().casefold() for question, _ in part} for part in parts.values()]
    assert sum(map(len, seen)) == 90 and len(set().union(*seen)) == 90, (
        "no question is in two splits"
    )
    manifest = prepare_chat(config)
    assert manifest.records == 180 and manifest.duplicates_dropped == 30
    assert 0.05 < manifest.splits["test"].records / 180 < 0.35
    assert is_prepared(config)
    assert not is_prepared(
        load_config(tmp_path / "run.yaml", ["data.test_fraction=0.2", "chat.max_tokens=95"])
    )


def test_long_conversations_are_left_out_and_counted(
    tiny_qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        {**row, "Response": row["Response"] * (1 + 8 * (n < 7))} for n, row in enumerate(rows(90))
    ]
    config = load_config(
        write_run_file(tmp_path, tiny_qwen, write_table(tmp_path / "q.json", found))
    )
    assert prepare_chat(config).records == 83
    printed = capsys.readouterr()
    assert "7 of 90 conversations have more than chat.max_tokens = 96 tokens" in printed.err
    assert "conversations: read 90, used 83, left out 7 (7 too long)" in printed.err
    number = Manifest.load(config.data.path).splits["validation"].records
    assert kinds.QUESTIONS.counted(config, None) == printed.err.splitlines()[-1:]
    assert kinds.QUESTIONS.counted(config, "validation") == [
        f"conversations: read {number}, used {number}, left out 0"
    ]


def test_data_prepared_otherwise_is_not_taken(run_file: Path) -> None:
    with pytest.raises(ValueError, match=r"chat\.prompt \(there .*, wanted 'Q: \{question\}'\)"):
        prepare_chat(load_config(run_file, ["chat.prompt='Q: {question}'"]))


def test_a_table_without_a_column_names_the_fields_of_chat(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("question,answer\na,b\n")
    with pytest.raises(ValueError, match=r"no column 'Question'.*columns in chat\.question_column"):
        read_conversations([table], ChatConfig(question_column="Question"))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("[1, 2", "is not JSON"),
        ('{"Question": "a"}', "got dict; expected a list of objects"),
        ("[]", "no question in there"),
        (
            '[{"question": "a", "Complex_CoT": "b", "Response": "c"}]',
            "has no column 'Question'; it has 'question'",
        ),
        (
            '[{"Question": "a", "Complex_CoT": "b", "Response": " "}]',
            "row 1: no text in 'Response'",
        ),
        (
            '[{"Question": ["a"], "Complex_CoT": "b", "Response": "c"}]',
            "row 1: 'Question' is ['a']; expected text",
        ),
        (
            '[{"Question": "a", "Complex_CoT": "b", "Response": "c"}]',
            "the validation split has no conversation",
        ),
    ],
)
def test_bad_tables_have_a_message_and_leave_nothing(
    tiny_qwen: Path, tmp_path: Path, found: str, message: str
) -> None:
    table = tmp_path / "questions.json"
    table.write_text(found)
    config = load_config(write_run_file(tmp_path, tiny_qwen, table))
    with pytest.raises(ValueError) as raised:
        prepare_chat(config)
    assert message in str(raised.value)
    assert not Path(config.data.path).exists()


@pytest.mark.parametrize("name", ["questions.jsonl.gz", "questions.json.gz"])
def test_a_gzip_file_is_not_unpacked_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table = tmp_path / name
    table.write_bytes(gzip.compress(b" " * (64 << 20)))
    monkeypatch.setattr("seqlm.language.table.MAX_ARRAY_CHARS", 1 << 20)
    with pytest.raises(ValueError, match=r"more than [0-9]+ characters"):
        read_conversations([table], ChatConfig())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.init_from=null", "model.init_from: got null with chat:"),
        ("chat.prompt=Hello", "chat.prompt: got 'Hello'; it must have {question}"),
        ("chat.response=Hello", "chat.response: got 'Hello'; it must have {answer}"),
        ("chat.reasoning_column=null", "chat.reasoning_column: got None with the response"),
        (
            "chat.answer_follows='Answer:'",
            "chat.answer_follows: got 'Answer:' with the response '<think>",
        ),
        ("chat.response='{answer}</think>{reasoning}'", "it must stand there before {answer}"),
        (
            "chat.max_tokens=385",
            "chat.max_tokens: got 385; allowed 2 to train.tokens_per_pack (384)",
        ),
        ("chat.questions=-1", "chat.questions: got -1; must not be negative"),
        ("chat.max_new_tokens=0", "chat.max_new_tokens: got 0; must be at least 1"),
        ("chat.table=[]", "chat.table: got an empty list"),
        ("task={kind: binary}", "chat, task: a run trains for one of them"),
        ("data.members=[a.fasta]", "data.members: got ['a.fasta'] with chat:"),
        ("chat.answers=3", "chat.answers: no such field; did you mean"),
    ],
)
def test_a_run_file_that_cannot_be_is_refused(run_file: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        load_config(run_file, [override])
    assert message in str(raised.value)


def changed_model(tiny_qwen: Path, folder: Path, file: str, **changes: Any) -> Path:
    """The tiny model with other settings in one of its files, and no weights."""
    folder.mkdir()
    for path in tiny_qwen.glob("*.json*"):
        (folder / path.name).write_text(path.read_text())
    settings = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps(settings))
    return folder


def test_models_that_cannot_be_trained_have_a_message(tiny_qwen: Path, tmp_path: Path) -> None:
    for number, (changes, message) in enumerate(
        (
            ({"model_type": "gpt2"}, "a model of type gpt2; allowed are llama"),
            ({"max_position_embeddings": 64}, "got 96; .* reads at most 64 tokens"),
            (
                {"quantization_config": {"quant_method": "gptq", "bits": 4}},
                "describes quantized weights",
            ),
        )
    ):
        folder = changed_model(tiny_qwen, tmp_path / str(number), "config.json", **changes)
        with pytest.raises(ValueError, match=message):
            read_config(folder, 96)
    folder = changed_model(tiny_qwen, tmp_path / "endless", "tokenizer_config.json", eos_token=None)
    config = load_config(write_run_file(tmp_path, folder, write_table(tmp_path / "questions.json")))
    with pytest.raises(ValueError, match="has no end-of-sequence token"):
        prepare_chat(config)
    no_template = changed_model(tiny_qwen, tmp_path / "plain", "config.json")
    (no_template / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="has no chat template; give the text"):
        prepare_chat(
            load_config(
                tmp_path / "run.yaml", [f"model.init_from={no_template}", "chat.prompt=null"]
            )
        )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages.__class__.__mro__ }}", "fails .SecurityError: "),
        ("{{ raise_exception('no user') }}", "fails .TemplateError: 'no user'"),
        ("{{ ('a' * 10**10) | length }}", "fails .MemoryError: "),
        ("{% for x in range(10**12) %}{% endfor %}", "fails .OverflowError: "),
        (
            "{% for x in range(9999) %}{% for y in range(9999) %}{% for z in range(9999) %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            "did not end within 0 s",
        ),
        # Jinja computes constants first, and ignores each Exception then.
        ("{{ ('a ' * 10**6) | wordwrap(1) }}", "did not end within 0 s"),
    ],
)
def test_a_chat_template_that_fails_or_does_not_end_is_one_line(
    tiny_qwen: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    message: str,
) -> None:
    monkeypatch.setattr("seqlm.language.template.TEMPLATE_SECONDS", 0.3)
    folder = changed_model(tiny_qwen, tmp_path / "model", "config.json")
    (folder / "chat_template.jinja").write_text(template)
    chat = ChatConfig(prompt=None)
    with pytest.raises(ValueError, match=message) as raised:
        Template(chat, folder).prompts(["Does it hurt?"])
    assert "\n" not in str(raised.value) and "chat.prompt: got null" in str(raised.value)


def test_requests_one_revision_of_the_hub_and_refuses_half_a_model(
    run_file: Path, tiny_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repository: str, *, revision: str | None, local_dir: Path, **_: object) -> None:
        asked.append((repository, revision))
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / "config.json").write_text((tiny_qwen / "config.json").read_text())
        if len(asked) == 1:
            raise huggingface_hub.errors.OfflineModeIsEnabled("no network")
        (local_dir / "model.safetensors").write_bytes(
            (tiny_qwen / "model.safetensors").read_bytes()
        )

    monkeypatch.setattr("seqlm.language.model_files.snapshot_download", download)
    config = load_config(
        run_file, ["model.init_from=owner/tiny@abc123", f"data.downloads={tmp_path}"]
    )
    with pytest.raises(
        ValueError, match=r"owner/tiny@abc123 could not be had from the hub: no network\. Check"
    ):
        fetch_model(config)
    folder = fetch_model(config)
    assert fetch_model(config) == folder and (folder / "model.safetensors").exists()
    assert asked == [("owner/tiny", "abc123")] * 2, (
        "what was left half done is not taken, what is whole is"
    )
    assert published_as(config) == ("owner/tiny", "abc123"), "as transformers and peft take it"
    sample = load_config(run_file, ["model.init_from=sample", f"data.downloads={tmp_path}"])
    assert published_as(sample) == (str(tmp_path / "models/sample"), None)
    for name, message in (
        ("no/such/model", "no hub id"),
        (str(tmp_path / "absent"), "no folder with config.json"),
    ):
        with pytest.raises(ValueError, match=message):
            fetch_model(load_config(run_file, [f"model.init_from={name}"]))


def test_weights_come_once_and_without_code() -> None:
    wanted = {"config.json", "LICENSE", "model-00001-of-00002.safetensors", "tokenizer.json"}
    others = {
        "consolidated.safetensors",
        "original/params.json",
        "pytorch_model.bin",
        "modeling.py",
    }
    found = filter_repo_objects(
        wanted | others, allow_patterns=list(MODEL_FILES), ignore_patterns=list(LEFT_OUT_FILES)
    )
    assert set(found) == wanted


def test_reports_a_missing_file_of_the_hub(run_file: Path, tmp_path: Path) -> None:
    config = load_config(
        run_file, ["chat.table=['hf://owner/name']", f"data.path={tmp_path / 'data'}"]
    )
    with pytest.raises(
        ValueError, match="a file of the hub is hf://datasets/<owner>/<name>@<revision>/<file>"
    ):
        prepare_chat(config)


def test_shipped_run_files_are_right_and_the_sample_is_what_its_readme_says() -> None:
    for path in CONFIGS.glob("*.yaml"):
        assert load_config(path).chat is not None
        assert yaml.safe_load(path.read_text())["chat"]["max_tokens"]
    text = gzip.decompress(QUESTIONS.sample.read_bytes())
    readme = QUESTIONS.sample.with_name("README.md").read_text()
    assert hashlib.sha256(text).hexdigest() in readme and text.count(b"\n") == 1200


def test_a_plan_is_of_esm2_alone(run_file: Path) -> None:
    with pytest.raises(ValueError, match="chat: got a run of a causal language model"):
        shape_of(load_config(run_file))
