"""Few-shot sets as prompts and their scores. Run: python -m pytest tests/finetune/prompt/test_data.py"""

from typing import Any

import numpy as np
import pytest

from configs import finetune_prompt
from data.glue.tasks import Split
from finetune import validate
from finetune.prompt import data as prompt_data
from finetune.prompt.data import Lengths
from finetune.prompt.templates import TEMPLATES, PromptWriter
from tests.finetune.prompt.prompt_case import make_vocabulary


def test_both_halves_of_mnli_are_tested(tmp_path, monkeypatch):
  writer = PromptWriter(TEMPLATES["mnli"], make_vocabulary(tmp_path))
  labels = np.array([0, 1, 2, 0, 1, 2], np.int32)

  def split(labels):
    texts = [chr(97 + n) for n in range(len(labels))]
    return Split(texts, texts, labels, texts, 0, "made", is_official=True)

  monkeypatch.setattr(prompt_data.kshot, "read", lambda *_, **__: (split(labels), split(labels)))
  monkeypatch.setattr(prompt_data.glue, "available", lambda *_: ("dev_matched", "dev_mismatched"))
  both = [split(np.array([1, 1, 0], np.int32)), split(np.array([1, 0, 2], np.int32))]
  monkeypatch.setattr(prompt_data.glue, "read_all", lambda *_, **__: both)
  config: Any = finetune_prompt.get_config()
  config.prompt.directory, config.prompt.splits = "draws", (13,)
  data = prompt_data.load("mnli", writer, config, Lengths(40, 2, 4, 0), download=False)
  assert data.is_official and data.metric == "accuracy" and list(data.tests) == ["", "_mm"]

  def always_entailment(batch):
    return np.broadcast_to(np.array([0.0, 1.0, 0.0], np.float32), (*batch["ids"].shape[:2], 3))

  found = data.test(always_entailment, 13)
  assert found == {"accuracy": pytest.approx(2 / 3), "accuracy_mm": pytest.approx(1 / 3)}
  broken = data.test(lambda batch: always_entailment(batch) * np.nan, 13)
  assert broken == {"accuracy": 0.0, "accuracy_mm": 0.0}  # a run that diverged learned nothing


def test_runs_are_judged_by_the_metrics_of_lm_bff():
  metrics = {task: prompt_data.PromptData(task, *[None] * 8).metric for task in TEMPLATES}
  others = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
  assert metrics == dict.fromkeys(TEMPLATES, "accuracy") | others


def test_the_config_is_valid_and_of_mnli():
  config: Any = finetune_prompt.get_config()
  assert validate.task_names({"kind": config.kind, "tasks": config.tasks}) == ["mnli"]
  assert config.prompt.splits == (13, 21, 42, 87, 100)
