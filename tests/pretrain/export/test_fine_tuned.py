"""Checkpoints as `finetune.main` saves them, out through a class and back."""

import json
import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")

from configs import finetune_own  # noqa: E402
from finetune.search.problem import exported_task  # noqa: E402
from finetune.search.session import Session  # noqa: E402
from pretrain.checkpoints.checkpoint import read_meta, step_path  # noqa: E402
from pretrain.export.task_fields import first_rows, label_fields, read_task, stored_task  # noqa: E402
from pretrain.stop import StopRequest  # noqa: E402
from tests.pretrain.export.refusals import failing, failing_commands  # noqa: E402
from tests.pretrain.export.test_export import same_params  # noqa: E402

LABELS = ["bad", "good", "unsure"]
OF_TEXTS = {"labels": LABELS, "problem_type": "single_label_classification"}
GELU, MEAN = {"activation": "gelu"}, {"activation": "tanh", "pooling": "mean"}
READ = {"windows": {"max_length": 24, "stride": 8}, "mask_query": False, "metric": "exact_match"}


def head(name: str, num_outputs: int = 3, *, is_modern: bool = False) -> dict:
  """The head of a task, 32 wide."""
  rng = np.random.default_rng(3)

  def linear(outputs: int) -> dict:
    kernel, bias = rng.normal(size=(32, outputs)), rng.normal(size=outputs)
    return {"kernel": np.float32(kernel), "bias": np.float32(bias)}

  if name != "classification":
    return {name: linear(2 if name == "question_answering" else num_outputs)}
  made = {"dense": linear(32), "output": linear(num_outputs)}
  if is_modern:
    made["dense"] = {"kernel": made["dense"]["kernel"]}
    made["norm"] = {"scale": np.float32(1 + 0.1 * rng.normal(size=32))}
  return {name: made}


@pytest.fixture
def fine_tuned(make_workdir):
  """kind, head, task -> the directory of a model with an encoder and one head."""

  def make(kind: str, name: str = "classification", **task) -> pathlib.Path:
    heads = head(name, is_modern=kind.startswith("modern"))
    task = {"name": "rte", "cell": "lr2e-05", "seed": 3, "metric": "accuracy", "value": 0.75, **task}
    return make_workdir(kind, heads=heads, step=40, task=task, pretraining_step=7)

  return make


def _task(model) -> dict:
  return read_meta(step_path(model))["task"]


ROUND = [  # kind, head, task, flags, class
  ("t5", "classification", OF_TEXTS | {"activation": "tanh"}, (), "MPNetForSequenceClassification"),
  ("wordpiece", "classification", OF_TEXTS | GELU, (), "ElectraForSequenceClassification"),
  ("deberta", "classification", OF_TEXTS | GELU, (), "DebertaV2ForSequenceClassification"),
  ("deberta", "tagging", {"labels": ["a", "b", "c"]}, (), "DebertaV2ForTokenClassification"),
  ("deberta", "question_answering", READ, (), "DebertaV2ForQuestionAnswering"),
  ("modern_mlm", "classification", OF_TEXTS | MEAN, (), "ModernBertForSequenceClassification"),
  ("t5", "classification", OF_TEXTS | MEAN | GELU, ("--to=torch",), None),
  ("wide_t5", "question_answering", READ, (), "LayoutLMv3ForQuestionAnswering"),
  ("byte_level", "tagging", {"labels": ["a", "b", "c"]}, (), "BertForTokenClassification"),
]


def test_a_head_keeps_its_labels_through_a_class(fine_tuned, tmp_path, capsys, export, bring):
  for at, (kind, name, task, flags, architecture) in enumerate(ROUND):
    model, out = fine_tuned(kind, name, **task), tmp_path / f"out{at}"
    (model / "task.json").write_text(f'{{"n": {at}}}')
    assert export(model, out, *flags) == 0, capsys.readouterr().err
    assert (f"of {name} logits" in capsys.readouterr().err) == (architecture is not None)
    config = json.loads((out / "config.json").read_text())
    assert config.get("architectures") == (architecture and [architecture]), kind
    if labels := task.get("labels"):
      assert config["id2label"] == dict(zip("012", labels))
      assert config["label2id"] == dict(zip(labels, range(3)))
      assert config.get("problem_type") == task.get("problem_type")
    card = (out / "README.md").read_text()
    assert "Fine-tuned on `rte` for 40 updates" in card and "| updates | 7 |" in card
    if architecture:
      names: dict = {}
      code = card.partition("```python\n")[2].partition("```")[0]
      exec(
        code.replace(f'"{out.name}"', f'"{out}"'), names
      )  # the card names the folder as the user called it
      assert {"scores", "found"} & {*names}, kind
    back = bring(out, tmp_path / f"back{at}")
    assert same_params(model, back), kind
    assert (back / "task.json").read_text() == f'{{"n": {at}}}'
    activation = "gelu" if kind == "deberta" else "tanh"
    of_tagger = {"problem_type": None, "activation": activation} if name == "tagging" else {}
    assert _task(back) == {"name": "rte", "metric": "accuracy"} | task | of_tagger


def test_a_new_classifier_has_the_activation_that_its_class_has(make_workdir, tmp_path):
  for kind, activation in (("wordpiece", "tanh"), ("deberta", "gelu")):
    config = finetune_own.get_config()
    config.checkpoint = str(make_workdir(kind))
    session = Session(config, str(tmp_path / kind), stop=StopRequest())
    assert exported_task("own", ["a", "b"], session.head)["activation"] == activation


def test_an_export_is_checked_with_the_rows_of_the_user(fine_tuned, tmp_path, capsys, export):
  """Texts, pairs, and words of a tagger; what is no ordinary text does not stop an export."""
  for at, (kind, name, rows) in enumerate(
    (
      ("t5", "classification", [["It rains."], ["a [MASK] is <mask>"], ["a NUL\0in it"]]),
      ("t5", "classification", [["It rains.", "Is it wet?"]]),
      ("byte_level", "tagging", [["It rains in Où ."], ["A cat ( sat )"]]),
    )
  ):
    model = fine_tuned(kind, name, labels=LABELS)
    (model / "first_rows.json").write_text(json.dumps(rows))
    assert export(model, tmp_path / f"out{at}") == 0 and "own rows" in capsys.readouterr().err
    assert not (tmp_path / f"out{at}" / "first_rows.json").exists()
  for text, expected in (('[["a", "b", "c"], ["d"], []]', [("d",)]), ("{", [])):
    (model / "first_rows.json").write_text(text)
    assert first_rows(model) == expected


def test_a_regression_has_one_output_and_no_names():
  params = {"heads": head("classification", 1)}
  fields = label_fields(params, {"labels": None, "problem_type": "regression"})
  expected = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
  assert fields == expected
  read = {"labels": None, "problem_type": "regression", "activation": "tanh"}
  assert read_task(fields, "mpnet", num_outputs=1) == read
  assert read_task({"id2label": {1: "b", 0: "a"}}, "electra", num_outputs=2) == {
    "labels": ["a", "b"],
    "problem_type": None,
    "activation": "gelu",
  }
  settings = {"pooler_activation_fn": "gelu", "classifier_activation": "relu"}
  assert read_task(settings, "fairseq", num_outputs=2)["activation"] == "gelu"
  assert "pooling" not in read_task({"classifier_pooling": "mean"}, "bert", num_outputs=2)
  longest = {"fingerprint": {"max_length": 24, "seed": 1}, "name": "own"}
  kept = label_fields({"heads": head("question_answering")}, longest)
  assert kept == {"text_encoder_task": {"name": "own", "fingerprint": {"max_length": 24}}}
  assert stored_task(kept) == {"name": "own", "fingerprint": {"max_length": 24}}


SETTINGS = [  # of config.json, a word of the refusal
  ({"id2label": {"0": "a"}}, "id2label"),
  ({"id2label": {"0": "a", "1": 2}}, "id2label"),
  ({"id2label": ["a", "b"]}, "id2label"),
  ({"text_encoder_task": {"windows": 3}}, "text_encoder_task"),
  ({"text_encoder_task": {"fingerprint": {"max_length": "x"}}}, "text_encoder_task"),
  ({"text_encoder_task": ["x"]}, "text_encoder_task"),
  ({"problem_type": 3}, "problem_type is 3"),
  ({"problem_type": ["regression"]}, "problem_type"),
  ({"classifier_activation": "mish"}, "classifier_activation is 'mish'"),
  ({"classifier_pooling": "sum"}, "classifier_pooling is 'sum'"),
]
REFUSED = [  # kind, task, flags, exit code, a word
  ("t5", {"pooling": "mean"}, (), 2, "  --config.own.pooling=cls"),
  ("modern_mlm", {"pooling": "max"}, (), 2, "by max"),
  ("t5", {"activation": "gelu"}, (), 2, "the class has tanh in its classification head"),
  ("deberta", {"activation": "tanh"}, (), 2, "the class has gelu in its classification head"),
]


def test_a_head_that_a_class_computes_otherwise_is_refused(fine_tuned, tmp_path, capsys, export):
  def run(kind, task, flags):
    return export(fine_tuned(kind, **task), tmp_path / "out", *flags)

  assert not failing_commands(REFUSED, run, capsys) and not list(tmp_path.iterdir())

  def read(settings):
    stored_task(settings)
    read_task(settings, "own", num_outputs=2)

  assert not failing(SETTINGS, read)
