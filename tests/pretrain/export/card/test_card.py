"""The model card: what it knows of a run."""

import json

import numpy as np
import pytest

from configs import base
from pretrain.embed.schema import EmbeddingSchema
from pretrain.export.card import card, history

FACTS = card.Facts(
  name="Tiny",
  layout="fairseq",
  reason="asked for with --to",
  architecture="",
  extra=("heads/mlm/bias", "generator/trunk/a"),
  pretokenization="none",
  hidden_difference=1.2e-6,
  logits_difference=None,
  tolerance=1e-5,
  license="",
  language="",
)


def _meta(**more) -> dict:
  return {"config": base.get_config().to_dict(), "step": 7, "packages": {"jax": "0"}, **more}


def test_figures_are_those_of_the_last_evaluation_before_the_step_and_hours_add_up(tmp_path):
  lines = [
    {"step": 0, "eval/loss": 9.0},
    {"step": 100, "train/loss": 5.0},
    {"step": 200, "train/loss": 4.0, "perf/steps_per_second": 0.5},
    {"step": 200, "eval/loss": 4.5, "eval/rtd_loss": None},
    {"step": 300, "train/loss": 4.0, "perf/steps_per_second": 0.25},
    {"step": 400, "eval/loss": 1.0},
  ]
  text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4'
  (tmp_path / "metrics.jsonl").write_text(text)
  figures, hours = history.read_metrics(tmp_path, 300)
  assert figures == {"loss": 4.5, "rtd_loss": None}
  assert hours == (100 / 0.5 + 100 / 0.25) / 3_600
  assert history.read_metrics(tmp_path / "nothing", 300) == ({}, 0.0)


def test_a_card_without_anything_known_says_so_and_leaves_no_placeholder(tmp_path):
  text = card.write(FACTS, {"encoder": {"a": np.zeros(3)}}, _meta(), tmp_path)
  for phrase in (
    "# Tiny",
    "3 parameters in the encoder",
    "official fairseq code",
    "splits off punctuation",
    "2 tensors of `generator/trunk`, `heads/mlm`",
    "No held-out metrics",
    "| hardware | not recorded |",
    "| hours | not recorded |",
    "Not given at export.",
  ):
    assert phrase in text, phrase
  assert not text.startswith("---")
  assert "$" not in text


def test_an_imported_model_is_said_to_be_imported(tmp_path):
  meta = _meta(step=0, source={"path": "/home/me/cocolm-base/"})
  text = card.write(FACTS, {"encoder": {}}, meta, tmp_path)
  assert "Imported from `cocolm-base` and not pretrained further" in text and "/home" not in text
  assert "imported model's own paper" in text


_TASK = {
  "name": "rte",
  "labels": ["yes", "no"],
  "cell": "lr2e-05",
  "seed": 3,
  "metric": "accuracy",
  "value": 0.75,
}


def test_a_fine_tuned_model_says_so_beside_the_updates_of_its_pretraining(tmp_path):
  meta = _meta(step=40, pretraining_step=1_000, task=_TASK)
  text = card.write(FACTS, {"encoder": {}}, meta, tmp_path)
  line = "Fine-tuned on `rte` for 40 updates, run lr2e-05, seed 3; accuracy 0.7500 on its development set."
  assert f"{line} Classes: 0: yes, 1: no." in text
  assert "| updates | 1,000 |" in text


def test_a_fine_tuned_import_claims_no_pretraining_of_ours(tmp_path):
  meta = _meta(step=40, pretraining_step=0, task=_TASK)
  meta["config"]["recipe"] = "imported-rte"
  text = card.write(FACTS, {"encoder": {}}, meta, tmp_path)
  assert "Fine-tuned on `rte` for 40 updates" in text and "Imported from another checkpoint" in text
  assert "| updates |" not in text and "imported model's own paper" in text


@pytest.mark.parametrize(
  "architecture, model_class, use",
  [
    ("MPNetModel", "AutoModel", "last_hidden_state"),
    ("MPNetForMaskedLM", "AutoModel", "last_hidden_state"),
    ("BertForSequenceClassification", "AutoModelForSequenceClassification", "id2label"),
    ("BertForQuestionAnswering", "AutoModelForQuestionAnswering", "end_logits"),
  ],
)
def test_the_class_that_fits_is_loaded_from_the_folder_by_its_name(architecture, model_class, use, tmp_path):
  facts = FACTS._replace(layout="bert", architecture=architecture, folder="rte", schema=EmbeddingSchema())
  text = card.write(facts, {"encoder": {}}, _meta(), tmp_path)
  code = text.partition("```python\n")[2].partition("```")[0]
  compile(code, "card", "exec")
  assert f'model = {model_class}.from_pretrained("rte")' in code and use in code
  assert "PATH" not in text and "$" not in text


@pytest.mark.parametrize(
  ("head", "what", "use"),
  [
    ("mlm", "A text encoder: ", "Fine-tuning for tasks"),
    ("classification", "A text classifier: ", "Predicting the class, or the number, of a text"),
    ("tagging", "A word tagger: ", "Predicting the class of each word"),
    ("question_answering", "A question-answering model: ", "Predicting the words of a text that answer"),
    ("span_pairs", "A span classifier: ", "Predicting the class of a span"),
  ],
)
def test_a_card_says_what_its_model_is_and_what_it_is_for(head, what, use, tmp_path):
  text = card.write(FACTS, {"encoder": {}, "heads": {head: {}}}, _meta(task={"name": "own"}), tmp_path)
  assert f"\n{what}" in text and f"## Intended use\n\n{use}" in text
  assert ("Fine-tuning for tasks" in text) == (head == "mlm")
  assert "Fine-tuned on the user's own files." in text


@pytest.mark.parametrize("heads", [{}, {"mlm": {}}, {"tagging": {}}])
def test_the_commands_of_this_project_are_named_with_the_folder(heads, tmp_path):
  facts = FACTS._replace(layout="bert", architecture="BertModel", folder="my model")
  text = card.write(facts, {"encoder": {}, "heads": heads}, _meta(), tmp_path)
  assert "python -m pretrain.export import --from='my model' --output='my model.model'\n" in text
  assert "python -m pretrain.embed --checkpoint='my model.model' --input=new.csv" in text
  for command in ("predict --model='my model.model' --input", "evaluate --model='my model.model' --data"):
    assert (f"python -m finetune.{command}" in text) == ("tagging" in heads)


def _cited(tmp_path, meta, **fields) -> set[str]:
  config = base.get_config()
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
  text = card.write(FACTS, {"encoder": {}}, meta | {"config": config.to_dict()}, tmp_path)
  cited = text.partition("## Citation")[2]
  names = {
    "COCO-LM": "COCO-LM:",
    "AMOS": "Adversarial Mixture",
    "TACO": "beyond Masked",
    "ELECTRA": "ELECTRA:",
  }
  names |= {"RoBERTa": "RoBERTa:", "BERT": " BERT: Pre-training", "imported": "imported model's own"}
  return {name for name, mark in names.items() if mark in cited}


_UNION = {
  "corruption__kind": "generator",
  "generator__mixture": "adversarial",
  "objectives__rtd__weight": 50.0,
  "objectives__clm__weight": 1.0,
  "objectives__taco__weight": 1.0,
}


@pytest.mark.parametrize(
  ("fields", "expected"),
  [
    (_UNION | {"recipe": "demo"}, {"COCO-LM", "AMOS", "TACO", "ELECTRA"}),
    ({"recipe": "mine", "objectives__all_token__weight": 1.0}, {"ELECTRA"}),
    ({"recipe": "mine", "objectives__mlm__weight": 1.0, "generator__mixture": "uniform"}, {"BERT"}),
    ({"recipe": "coco_lm:rtd_only", "objectives__rtd__weight": 50.0}, {"COCO-LM", "ELECTRA"}),
    ({"recipe": "roberta_tiny-rte", "objectives__mlm__weight": 1.0}, {"RoBERTa", "BERT"}),
    ({"recipe": "bertha"}, set()),
  ],
)
def test_what_is_cited_follows_from_what_the_config_switches_on_and_from_a_papers_recipe(
  fields, expected, tmp_path
):
  assert _cited(tmp_path, _meta(), **fields) == expected


def test_a_run_that_began_with_an_import_cites_both(tmp_path):
  start = {
    "recipe": "mine",
    "step": 9,
    "started_from": {"train.init_from": {"source": {"path": "a"}, "step": 0}},
  }
  meta = _meta(started_from={"train.init_from": start})
  assert _cited(tmp_path, meta, recipe="mine", objectives__taco__weight=1.0) == {"TACO", "imported"}
