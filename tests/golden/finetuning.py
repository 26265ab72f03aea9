"""Golden kinds of fine-tuning: i_glue (metrics) and i_squad (evaluation and n-best decoding)."""

import re

import numpy as np

from finetune.papers import glue_metrics
from finetune.squad import answers as squad_evaluate
from finetune.squad import windows as squad_predict
from finetune.squad.windows import Document, Prediction, Window, max_context
from tests.finetune.squad import squad_case
from tests.golden.compare import Checks
from tests.golden.files import Golden


def check_glue_metrics(golden: Golden, checks: Checks) -> None:
  """Accuracy, F1, Matthews' correlation of predicted classes; Pearson's and Spearman's of numbers."""
  for match in golden.groups(r"binary\d+/"):
    case = match.group()
    labels, predictions = golden[case + "labels"], golden[case + "preds"]
    functions = {"acc": glue_metrics.accuracy, "f1": glue_metrics.f1, "mcc": glue_metrics.matthews}
    for name, function in functions.items():
      checks.compare("metrics", case + name, function(labels, predictions))
  for match in golden.groups(r"reg\d+/"):
    case = match.group()
    x, y = golden[case + "x"], golden[case + "y"]
    checks.compare("metrics", case + "pearson", glue_metrics.pearson(x, y))
    checks.compare("metrics", case + "spearman", glue_metrics.spearman(x, y))


def check_squad(golden: Golden, checks: Checks) -> None:
  """Normalisation, scores before and after thresholds, best thresholds, decoding of windows."""
  inputs = ("what", "dataset/", "predictions/", "na_prob/", "nbest_input/")
  for prefix in inputs:
    golden.under(prefix)  # read below, from the JSON
  paragraphs = [paragraph for article in golden.field("dataset") for paragraph in article["paragraphs"]]
  gold = {
    question["id"]: [answer["text"] for answer in question["answers"]]
    for paragraph in paragraphs
    for question in paragraph["qas"]
  }
  predictions, odds = golden.field("predictions"), golden.field("na_prob")
  raw = squad_evaluate.raw_scores(gold, predictions)
  checks.compare_all("scores", "exact_raw/", raw.exact)
  checks.compare_all("scores", "f1_raw/", raw.f1)
  for name in golden.field("results"):
    threshold = float(name.removeprefix("na_thresh_"))
    found = squad_evaluate.official_scores(gold, predictions, odds, threshold=threshold)
    checks.compare_all("scores", f"results/{name}/", found)
  # The fairseq code hands the odds on as if they were probabilities: its threshold is 1.
  found = squad_evaluate.official_scores(gold, predictions, odds, threshold=1.0)
  checks.compare_all("scores", "fairseq_squad_evaluate/", found)
  for text in golden.field("normalize_answer"):
    checks.compare_text("texts", f"normalize_answer/{text}", squad_evaluate.normalize_answer(text))
  for match in golden.groups(r"nbest_n(\d+)_maxlen(\d+)/"):
    n_best, longest = map(int, match.groups())
    for example, words in golden.field("nbest_input")["docs"].items():
      features = [one for one in golden.field("nbest_input")["features"] if one["example"] == example]
      windows = _windows(features, words)
      logits = ([np.asarray(one[name]) for one in features] for name in ("start_logits", "end_logits"))
      settings = squad_case.settings(n_best=n_best, max_answer_length=longest)
      answer = squad_predict.decode(windows, *logits, settings, detokenize=" ".join)
      _compare_answer(golden, checks, match.group(), example, answer)


def _windows(features: list[dict], words: list[str]) -> list[Window]:
  """The windows of one document, whose words are its tokens; their maximum context is compared too."""
  document = Document(words, [], np.arange(len(words)), np.arange(len(words)))
  windows = [
    Window(0, one["span_start"], one["span_len"], one["doc_offset"], document, np.array(one["tokens"]))
    for one in features
  ]
  for window, feature, is_most in zip(windows, features, max_context(windows)):
    official = feature["token_is_max_context"]
    positions = range(window.offset, window.offset + window.count)
    assert [official.get(str(at), False) for at in positions] == is_most.tolist(), feature["example"]
  return windows


def _compare_answer(golden: Golden, checks: Checks, case: str, example: str, answer: Prediction) -> None:
  checks.compare_text("texts", f"{case}best_non_null/{example}", answer.text)
  checks.compare("scores", f"{case}null_score_diff/{example}", answer.null_odds)
  for key in golden.under(f"{case}nbest_top3/{example}/"):
    place, name = re.fullmatch(r"(\d+)/(\w+)", key).groups()
    ours = answer.n_best[int(place)]
    path = f"{case}nbest_top3/{example}/{key}"
    if name == "text":
      checks.compare_text("texts", path, ours.text)
    else:
      checks.compare("scores", path, getattr(ours, name))
