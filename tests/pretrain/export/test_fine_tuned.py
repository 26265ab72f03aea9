"""Checkpoints as `finetune.main` saves them, out through every layout and back.

Run: python -m pytest tests/pretrain/export/test_fine_tuned.py
"""

import argparse
import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from data.errors import DataError  # noqa: E402
from pretrain.checkpoints.checkpoint import Checkpoints, load_params, read_meta, step_path  # noqa: E402
from pretrain.export import __main__, tensor_rows  # noqa: E402
from pretrain.export.check import torch_check  # noqa: E402
from pretrain.export.task_fields import read_task, stored_task  # noqa: E402

LABELS = ["bad", "good", "unsure"]


def _head(name: str, num_outputs: int, *, is_modern: bool = False) -> dict:
  rng = np.random.default_rng(3)

  def linear(outputs: int) -> dict:
    return {"kernel": rng.normal(size=(32, outputs)), "bias": rng.normal(size=outputs)}

  plain = {"question_answering": 2, "tagging": num_outputs}
  head = linear(plain[name]) if name in plain else {"dense": linear(32), "output": linear(num_outputs)}
  if is_modern and name == "classification":
    head["dense"] = {"kernel": head["dense"]["kernel"]}
    head["norm"] = {"scale": 1 + 0.1 * rng.normal(size=32)}
  return {name: jax.tree.map(np.float32, head)}


@pytest.fixture(scope="module")
def fine_tuned(make_workdir, tmp_path_factory):
  """kind, head, task -> the directory of a model that has its encoder and one head, and nothing else."""
  pretrained = functools.cache(make_workdir)

  def make(kind: str, head: str = "classification", num_outputs: int = 3, **task) -> pathlib.Path:
    params, meta = load_params(pretrained(kind))
    state = {
      "params": {
        "encoder": params["encoder"],
        "heads": _head(head, num_outputs, is_modern=kind.startswith("modern")),
      },
      "step": np.int32(40),
    }
    task = {"name": "rte", "cell": "lr2e-05", "seed": 3, "metric": "accuracy", "value": 0.75, **task}
    more = {"task": task, "pretraining_step": 7}
    directory = tmp_path_factory.mktemp("fine-tuned") / "model"
    checkpoints = Checkpoints(directory, every=1, keep=1)
    meta = {"config": meta["config"], "vocabulary_digest": meta["vocabulary_digest"], **more}
    checkpoints.save(40, jax.tree.map(jax.numpy.asarray, state), meta, force=True)
    checkpoints.wait()
    checkpoints.close()
    shutil.copytree(pretrained(kind) / "vocabulary", directory / "vocabulary")
    return directory

  return make


def _import(folder: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
  assert __main__.main(["import", f"--from={folder}", f"--output={output}"]) == 0
  return output


def _assert_same(first: pathlib.Path, second: pathlib.Path) -> None:
  ours, theirs = (tensor_rows.flatten(load_params(place)[0]) for place in (first, second))
  assert ours.keys() == theirs.keys()
  assert not [path for path in ours if not np.array_equal(ours[path], theirs[path])]


@pytest.mark.parametrize(
  ("kind", "to", "activation", "architecture"),
  [
    ("t5", "auto", "tanh", "MPNetForSequenceClassification"),
    ("wide_t5", "auto", "tanh", "LayoutLMv3ForSequenceClassification"),
    ("wordpiece", "auto", "gelu", "ElectraForSequenceClassification"),
    ("modern_mlm", "auto", "tanh", "ModernBertForSequenceClassification"),
    ("modern_mlm", "torch", "tanh", None),
    ("t5", "torch", "gelu", None),
    ("official", "cocolm", "gelu", None),
  ],
)
def test_a_classifier_keeps_its_head_and_labels_through_a_layout(
  kind, to, activation, architecture, fine_tuned, tmp_path, capsys, in_this_process, export
):
  task = {"labels": LABELS, "problem_type": "single_label_classification", "activation": activation}
  model = fine_tuned(kind, **task)
  assert export(model, tmp_path / "out", f"--to={to}") == 0, capsys.readouterr().err
  assert ("of classification logits" in capsys.readouterr().err) == (architecture is not None)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config.get("architectures") == (architecture and [architecture])
  assert config["id2label"] == dict(zip("012", LABELS))
  assert config["label2id"] == dict(zip(LABELS, range(3)))
  assert config["problem_type"] == "single_label_classification"
  card = (tmp_path / "out" / "README.md").read_text()
  assert "Fine-tuned on `rte` for 40 updates" in card and "| updates | 7 |" in card
  back = _import(tmp_path / "out", tmp_path / "back")
  _assert_same(model, back)
  assert read_meta(step_path(back))["task"] == task | {"name": "rte", "metric": "accuracy"}


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_fairseq_keeps_the_head_and_its_activation_but_has_no_place_for_labels(
  activation, fine_tuned, tmp_path, capsys, in_this_process, export
):
  model = fine_tuned("official", labels=LABELS, activation=activation)
  assert export(model, tmp_path / "out", "--to=fairseq") == 0, capsys.readouterr().err
  assert "Classes: 0: bad, 1: good, 2: unsure." in (tmp_path / "out" / "README.md").read_text()
  with torch.serialization.safe_globals([argparse.Namespace]):
    content = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
  assert content["args"].pooler_activation_fn == activation
  assert "classification_heads.sentence_classification_head.out_proj.weight" in content["model"]
  back = _import(tmp_path / "out", tmp_path / "back")
  _assert_same(model, back)
  task = read_meta(step_path(back))["task"]
  assert task == {"labels": None, "problem_type": None, "activation": activation}


def test_logits_of_texts_are_compared_whole_though_they_have_as_many_classes_as_there_are_tokens():
  expected, mask = np.zeros((2, 3), np.float32), np.asarray([[1, 1, 0], [1, 1, 1]])
  found = torch.zeros(2, 3)
  found[0, 2] = 0.5
  of_texts, of_tokens = torch_check.Worst(), torch_check.Worst()
  of_texts.add_logits(found, expected, torch_check.OF_TEXTS)
  of_tokens.add_logits(found, expected, mask > 0)  # where it is padding
  assert (of_texts.logits, of_tokens.logits) == (0.5, 0.0)


@pytest.mark.parametrize("kind", ["t5", "wide_t5", "wordpiece", "euro_electra"])
def test_a_question_answerer_gives_our_start_and_end_logits(
  kind, fine_tuned, tmp_path, capsys, monkeypatch, in_this_process, export
):
  read = {"windows": {"max_length": 24, "stride": 8}, "mask_query": False, "metric": "exact_match"}
  model = fine_tuned(kind, head="question_answering", **read)
  assert export(model, tmp_path / "out") == 0, capsys.readouterr().err
  assert "of question_answering logits" in capsys.readouterr().err
  architecture = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
  assert architecture.endswith("ForQuestionAnswering")
  task = read_meta(step_path(_import(tmp_path / "out", tmp_path / "back")))["task"]
  assert task == read | {"name": "rte"}  # so the copy reads and answers as the model did
  monkeypatch.chdir(tmp_path)
  names: dict = {}
  exec((tmp_path / "out" / "README.md").read_text().partition("```python\n")[2].partition("```")[0], names)
  assert names["start"] == names["end"] == 0 or {names["start"], names["end"]} <= {*names["words"]}


@pytest.mark.parametrize(
  ("kind", "num_outputs"), [("t5", 3), ("wordpiece", 3), ("byte_level", 3), ("wide_t5", 12)]
)
def test_a_tagger_is_checked_with_the_words_of_the_user(
  kind, num_outputs, fine_tuned, tmp_path, capsys, monkeypatch, in_this_process, export
):
  labels = [f"tag {number}" for number in range(num_outputs)]
  model = fine_tuned(kind, head="tagging", num_outputs=num_outputs, labels=labels)
  (model / "first_rows.json").write_text(json.dumps([["It rains in Où ."], ["A cat ( sat )"]]))
  (model / "task.json").write_text("{}")
  check, seen = torch_check._check_words, []
  monkeypatch.setattr(torch_check, "_check_words", lambda *given: seen.append(given[1]) or check(*given))
  assert export(model, tmp_path / "out") == 0, capsys.readouterr().err
  assert [case["name"] for case in seen] == ["own rows"]
  assert "of tagging logits" in capsys.readouterr().err
  words = '["A", " few", " words"]' if kind == "byte_level" else '["A", "few", "words"]'
  assert f"words = {words}" in (tmp_path / "out" / "README.md").read_text()
  assert (_import(tmp_path / "out", tmp_path / "back") / "task.json").read_text() == "{}"
  _assert_same(model, tmp_path / "back")
  assert read_meta(step_path(tmp_path / "back"))["task"]["labels"] == labels


@pytest.mark.parametrize("rows", [[["It rains."], ["A cat sat."]], [["It rains.", "Is it wet?"]]])
def test_an_export_is_checked_with_the_rows_of_the_user(
  rows, fine_tuned, tmp_path, capsys, monkeypatch, in_this_process, export
):
  model, seen = fine_tuned("t5", labels=LABELS), []
  (model / "first_rows.json").write_text(json.dumps(rows))
  run = torch_check._tokenized
  monkeypatch.setattr(torch_check, "_tokenized", lambda *given: seen.append(given[1]["texts"]) or run(*given))
  assert export(model, tmp_path / "out") == 0, capsys.readouterr().err
  assert "own rows" in capsys.readouterr().err and rows in seen
  assert not (tmp_path / "out" / "first_rows.json").exists()


@pytest.mark.parametrize("strange", ["a [MASK] is [SEP] and <mask>", "a NUL\0in it"], ids=["special", "nul"])
def test_a_row_of_the_user_that_is_no_ordinary_text_does_not_stop_an_export(
  strange, fine_tuned, tmp_path, capsys, in_this_process, export
):
  model = fine_tuned("t5", labels=LABELS)
  (model / "first_rows.json").write_text(json.dumps([[strange], ["It rains."]]))
  assert export(model, tmp_path / "out") == 0, capsys.readouterr().err
  assert "own rows" in capsys.readouterr().err


def test_a_head_on_the_mean_of_the_tokens_is_refused_where_classes_read_cls(
  fine_tuned, tmp_path, capsys, in_this_process, export
):
  model = fine_tuned("t5", labels=LABELS, pooling="mean")
  assert export(model, tmp_path / "out") == 2
  assert "the classification head pools a text's vectors by mean" in capsys.readouterr().err
  assert export(model, tmp_path / "out", "--to=torch") == 0
  assert json.loads((tmp_path / "out" / "config.json").read_text())["classifier_pooling"] == "mean"
  task = read_meta(step_path(_import(tmp_path / "out", tmp_path / "back")))["task"]
  assert (task["pooling"], task["labels"]) == ("mean", LABELS)


def test_a_head_on_the_mean_of_the_tokens_has_a_class_with_pre_norm_layers(
  fine_tuned, tmp_path, capsys, in_this_process, export
):
  model = fine_tuned("modern_mlm", labels=LABELS, pooling="mean")
  assert export(model, tmp_path / "out") == 0, capsys.readouterr().err
  assert json.loads((tmp_path / "out" / "config.json").read_text())["classifier_pooling"] == "mean"
  back = _import(tmp_path / "out", tmp_path / "back")
  _assert_same(model, back)
  assert read_meta(step_path(back))["task"]["pooling"] == "mean"
  model = fine_tuned("modern_mlm", labels=LABELS, pooling="max")
  assert export(model, tmp_path / "out") == 2
  assert "pools a text's vectors by max" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["cocolm", "fairseq", "torch"])
def test_a_question_answerer_comes_back_from_layouts_that_no_class_reads(
  to, fine_tuned, tmp_path, capsys, in_this_process, export
):
  model = fine_tuned("official", head="question_answering")
  assert export(model, tmp_path / "out", f"--to={to}") == 0, capsys.readouterr().err
  _assert_same(model, _import(tmp_path / "out", tmp_path / "back"))
  if to == "cocolm":  # in COCOLMForQuestionAnswering the head is beside the encoder, `self.cocolm`
    names = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True).keys()
    assert {name.split(".")[0] for name in names} == {"cocolm", "qa_outputs"}


def test_a_regression_has_one_output_and_no_names(fine_tuned, tmp_path, capsys, in_this_process, export):
  model = fine_tuned("t5", num_outputs=1, labels=None, problem_type="regression")
  assert export(model, tmp_path / "out") == 0, capsys.readouterr().err
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config["problem_type"] == "regression" and config["id2label"] == {"0": "LABEL_0"}
  task = read_meta(step_path(_import(tmp_path / "out", tmp_path / "back")))["task"]
  ours = {"name": "rte", "metric": "accuracy"}
  assert task == ours | {"labels": None, "problem_type": "regression", "activation": "tanh"}


@pytest.mark.parametrize(
  ("kind", "to", "task", "message"),
  [
    ("official", "cocolm", {}, "the port has gelu in its classification head, this model has tanh"),
    ("t5", "auto", {"activation": "gelu"}, "the class has tanh in its classification head, this model has"),
  ],
)
def test_a_head_that_a_layout_computes_otherwise_is_refused(
  kind, to, task, message, fine_tuned, tmp_path, capsys, in_this_process, export
):
  assert export(fine_tuned(kind, **task), tmp_path / "out", f"--to={to}") == 2
  error = capsys.readouterr().err.strip()
  assert message in error and all(line.startswith("  ") for line in error.splitlines()[1:])
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"id2label": {"0": "a"}}, "id2label is .* expected names for the 2 outputs"),
    ({"id2label": {"0": "a", "1": 2}}, "id2label is"),
    ({"id2label": ["a", "b"]}, "id2label is"),
    ({"text_encoder_task": {"windows": 3}}, "text_encoder_task is .* export the model again"),
    ({"text_encoder_task": {"fingerprint": {"max_length": "x"}}}, "text_encoder_task is"),
    ({"text_encoder_task": ["x"]}, "text_encoder_task is"),
    ({"problem_type": 3}, "problem_type is 3"),
    ({"problem_type": ["regression"]}, "problem_type is"),
    ({"classifier_activation": "relu"}, "classifier_activation is 'relu'"),
    ({"classifier_pooling": "sum"}, "classifier_pooling is 'sum'"),
  ],
)
def test_settings_that_do_not_fit_a_head_are_named(settings, message):
  with pytest.raises(DataError, match=message):
    stored_task(settings)
    read_task(settings, "own", num_outputs=2)
