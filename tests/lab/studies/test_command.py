"""The command of ablations: every study, paper and fine-tuning is one that runs; mistakes of one line."""

import json
import pathlib
import shutil

import pytest

from data.command import STOPPED
from data.glue.tasks import TASKS
from finetune import main as fine_tune
from finetune import needed_files
from lab.studies import __main__ as command
from lab.studies import cells, papers
from lab.studies.fine_tunings import FINE_TUNINGS
from lab.studies.studies import STUDIES
from pretrain.command import flags
from tests.lab.studies.stand_in import Commands

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
  for what in (*(f"--study={name}" for name in STUDIES), *(f"--paper={name}" for name in papers.FAMILIES)):
    argv = [what, *["--tiny"] * ("paper" in what), f"--data={data}", f"--output={tmp_path}", "--only=pos"]
    asked, _ = command.asked_for([*argv, "--budget=4000"])
    names = list(asked.study.arms)
    for name, arm in asked.study.arms.items():
      assert arm.base in ("", *names) and all(names.index(one) < names.index(name) for one in arm.earlier)


def test_every_fine_tuning_is_a_config_that_finetune_takes(data, tmp_path):
  place = {"train": "en_ewt-ud-train.conllu", "dev": "en_ewt-ud-dev.iob2", "stsb": "glue/STS-B/train.tsv"}
  expected = {
    "tagging_50": ("tagging", 50, place["train"]),
    "entities_200": ("tagging", 200, place["dev"]),
    "names": ("auto", 0, "names/pairs.jsonl"),
    "sts": ("auto", 0, place["stsb"]),
  }
  for name in FINE_TUNINGS:
    argv = [
      "--paper=amos",
      "--tiny",
      "--budget=4000",
      "--only=pos",
      "--rows=amos_tiny",
      f"--fine_tune={name}",
    ]
    asked, _ = command.asked_for([*argv, f"--data={data}", f"--output={tmp_path}"])
    cell = asked.cells[0]
    search = next(words for words in asked.commands(cell) if words[0] == "finetune.main")
    config = flags.read_arguments(asked.filled(search, cell)[1:], fine_tune.PROGRAM).config
    needed_files.check(config, download=False)
    if name in expected:
      found = config.own.task, config.data.train_rows, config.data.train_file
      task, rows, file = expected[name]
      assert found == (task, rows, str(data / file)), name
    elif name in TASKS:
      found = config.tasks, config.data.directory, config.search.num_seeds
      assert found == (name, str(data / "glue"), 1) and asked.fine_tunings(8) == {f"{name}/pretrained": 8}


MISTAKES = [
  (("--paper=coco",), 2, "coco_lm"),
  (("--study=e99",), 2, "e99"),
  (("--paper=coco_lm",), 2, "--budget"),
  (("--study=e1", "--budget=-1"), 2, "--budget=-1"),
  (("--study=e1", "--tiny"), 2, "--paper"),
  (("--study=e1", "--rows=mlmm"), 2, "mlm"),
  (("--study=e1", "--config.train.total=1"), 2, "mlm: "),
  (("--study=e1", "--config.seed=7"), 2, "--seeds=N"),
  (("--study=e1", "--config.train.total_steps=8"), 2, "--budget=N"),
  (("--study=e8_rates", "--config.optimizer.learning_rate=1e-3"), 2, "learning_rate=1e-3"),
  (("--study=e2", "--data=nowhere"), 3, "nowhere"),
  (("--study=e1", "--data=nowhere"), 3, "UD_English-EWT/"),
  (("--study=e1", "--data=nowhere", "--fine_tune=mnli"), 3, "glue/MNLI/"),
  (("--study=e7", "--data=nowhere"), 3, "names/"),
  (("--study=e2", "--fine_tune=taging_50"), 2, "tagging_50"),
  ((), 2, "--paper"),
]


def test_a_mistake_is_one_line_and_nothing_is_written(data, tmp_path, capsys):
  failures = []
  for given, code, word in MISTAKES:
    found = command.main([f"--data={data}", f"--output={tmp_path / 'out'}", "--only=pos", *given])
    error = capsys.readouterr().err
    if found != code or word not in error or (tmp_path / "out").exists():
      failures.append(f"{given}: {found} {error}")
  assert not failures, "\n".join(failures)


def test_the_command_writes_the_table_and_goes_on(data, tmp_path, monkeypatch, capsys):
  commands = Commands({"rtd_only 0 main": STOPPED})
  monkeypatch.setattr(cells, "run_child", commands)
  monkeypatch.chdir(tmp_path)
  shutil.copytree(pathlib.Path(__file__).parents[3] / "configs", tmp_path / "configs")
  given = [
    "--paper=coco_lm",
    "--tiny",
    "--rows=rtd_only",
    "--budget=300",
    "--seeds=2",
    "--only=pos",
    f"--data={data}",
  ]
  assert command.main(given) == STOPPED
  assert command.main([*given, "--table"]) == 0
  assert "Open, 3 of 4 cells" in " ".join(capsys.readouterr().out.split())
  assert command.main(given) == 0
  written = (tmp_path / "runs" / "ablations_coco_lm_tiny" / "ablations.md").read_text()
  assert "MNLI -0.1/-0.1, average -0.4" in written and "Open" not in written
