"""The command of ablations: every study, paper and fine-tuning is one that runs; mistakes of one line."""

import json
import pathlib

import pytest

from configs.ablations.table import FAMILIES
from data.glue.tasks import TASKS
from lab.studies import __main__ as command
from lab.studies.study import FINE_TUNINGS, STORED

_SENTENCE = "1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n2\tslow\tslow\tADV\tRB\t_\t1\tadvmod\t_\t_\n\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
  """The least folder of annotated data for every probe and fine-tuning that is asked for here."""
  folder = tmp_path_factory.mktemp("annotated")
  pair = {"sentence_good": "dogs run", "sentence_bad": "dogs runs"}
  texts = {"blimp/agreement.jsonl": json.dumps(pair) + "\n", "names/pairs.jsonl": "{}\n"}
  texts |= {f"en_ewt-ud-{split}.conllu": _SENTENCE for split in ("train", "dev", "test")}
  texts |= {f"en_ewt-ud-{split}.iob2": "" for split in ("dev", "test")}
  for name in set(TASKS) & set(FINE_TUNINGS) | {"stsb"}:
    splits = ("train", "dev_matched") if name == "mnli" else ("train", "dev")
    texts |= {f"glue/{TASKS[name].folders[0]}/{split}.tsv": "" for split in splits}
  for name, text in texts.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
  (folder / "names" / "beir").mkdir()
  return folder


def test_every_row_is_a_config_that_pretraining_takes(data, tmp_path):
  stored = [f"--study={path.stem}" for path in STORED.glob("*.jsonl")]
  for what in (*stored, *(f"--paper={name}" for name in FAMILIES)):
    argv = [what, *["--tiny"] * ("paper" in what), f"--data={data}", f"--output={tmp_path}", "--only=pos"]
    asked, _ = command.asked_for([*argv, "--budget=4000"])
    names = list(asked.study.arms)
    for name, arm in asked.study.arms.items():
      assert arm.base in ("", *names) and all(names.index(one) < names.index(name) for one in arm.earlier)


MISTAKES = [
  (("--paper=coco",), 2, "coco_lm"),
  (("--paper=coco_lm",), 2, "--budget"),
  (("--study=e11",), 2, "e1"),
  (("--study=e1", "--data="), 2, "--data=FOLDER"),
  (("--study=e1", "--rows=mlmm"), 2, "mlm"),
  (("--study=e1", "--config.train.total=1"), 2, "mlm: "),
  (("--study=e1", "--config.seed=7"), 2, "--seeds=N"),
  (("--study=e8_rates", "--config.optimizer.learning_rate=1e-3"), 2, "learning_rate=1e-3"),
  (("--study=e2", "--data=nowhere"), 3, "nowhere"),
  (("--study=e1", "--data=nowhere"), 3, "UD_English-EWT/"),
  (("--study=e2", "--fine_tune=taging_50"), 2, "tagging_50"),
]


def test_a_mistake_is_one_line_and_nothing_is_written(data, tmp_path, capsys):
  failures = []
  for given, code, word in MISTAKES:
    found = command.main([f"--data={data}", f"--output={tmp_path / 'out'}", "--only=pos", *given])
    error = capsys.readouterr().err
    if found != code or word not in error or (tmp_path / "out").exists():
      failures.append(f"{given}: {found} {error}")
  assert not failures, "\n".join(failures)
