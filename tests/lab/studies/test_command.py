"""The command of ablations: every study, paper and fine-tuning is one that runs; mistakes of one line."""

import contextlib
import json
import pathlib
import shutil

import pytest

from data.command import STOPPED
from data.errors import DataError
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
GLUE = [name for name, what in FINE_TUNINGS.items() if not what.scored_on]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
  """The least folder of annotated data: a minimal pair and a treebank of a sentence."""
  folder = tmp_path_factory.mktemp("annotated")
  (folder / "blimp").mkdir()
  pair = {"sentence_good": "dogs run", "sentence_bad": "dogs runs"}
  (folder / "blimp" / "agreement.jsonl").write_text(json.dumps(pair) + "\n")
  for split in ("train", "dev", "test"):
    (folder / f"en_ewt-ud-{split}.conllu").write_text(_SENTENCE)
  return folder


@pytest.mark.parametrize(
  "what",
  [*(f"--study={name}" for name in STUDIES), *(f"--paper={name}" for name in papers.FAMILIES)],
)
def test_every_row_is_a_config_that_pretraining_takes(what, data, tmp_path):
  size = ["--tiny"] if "paper" in what else []
  shutil.copytree(data, tmp_path / "data")
  for name in ("names/beir/corpus.jsonl", "names/pairs.jsonl", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv"):
    (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / name).write_text("")
  for split in ("dev", "test"):
    (tmp_path / "data" / f"en_ewt-ud-{split}.iob2").write_text("")
  argv = [what, *size, f"--data={tmp_path / 'data'}", f"--output={tmp_path}", "--budget=4000", "--only=pos"]
  asked, _ = command.asked_for(argv)
  assert all(arm.base in ("", *asked.study.arms) for arm in asked.study.arms.values())
  names = list(asked.study.arms)
  for name, arm in asked.study.arms.items():
    assert all(names.index(needed) < names.index(name) for needed in arm.earlier)


def test_the_embedding_stage_is_a_config_that_finetune_takes(data, tmp_path):
  shutil.copytree(data, tmp_path / "data")
  argv = ["--study=e7", "--only=pos", f"--data={tmp_path / 'data'}", f"--output={tmp_path}"]
  with pytest.raises(DataError, match="names needs names/ with pairs"):
    command.asked_for(argv)
  (tmp_path / "data" / "names" / "beir").mkdir(parents=True)
  (tmp_path / "data" / "names" / "pairs.jsonl").write_text("{}\n")
  asked, _ = command.asked_for(argv)
  *_, search, score = asked.commands(asked.cells[0])
  config = flags.read_arguments(asked.filled(search, asked.cells[0])[1:], fine_tune.PROGRAM).config
  needed_files.check(config, download=False)
  assert (config.kind, config.search.learning_rates, config.from_scratch) == ("embedding", (1e-3,), True)
  assert f"--data={tmp_path / 'data' / 'names' / 'beir'}" in asked.filled(score, asked.cells[0])


def test_entities_and_similarity_are_configs_that_finetune_takes(data, tmp_path):
  shutil.copytree(data, tmp_path / "data")
  argv = ["--study=e8", "--only=pos", f"--data={tmp_path / 'data'}", f"--output={tmp_path}"]
  with pytest.raises(DataError, match="entities_200 needs UNER_English-EWT/ with "):
    command.asked_for(argv)
  for split in ("dev", "test"):
    (tmp_path / "data" / f"en_ewt-ud-{split}.iob2").write_text("1\tGo\tO\t-\t-\n\n")
  with pytest.raises(DataError, match="sts needs glue/STS-B/ with train"):
    command.asked_for(argv)
  (tmp_path / "data" / "glue" / "STS-B").mkdir(parents=True)
  for split in ("train", "dev"):
    (tmp_path / "data" / "glue" / "STS-B" / f"{split}.tsv.gz").write_text("")
  asked, _ = command.asked_for(argv)
  cell = asked.cells[-1]
  entities, of_entities, similarity, of_similarity = (
    asked.filled(one, cell)[1:] for one in asked.commands(cell)[-4:]
  )
  config = flags.read_arguments(entities, fine_tune.PROGRAM).config
  needed_files.check(config, download=False)
  assert (config.own.task, config.data.train_rows) == ("tagging", 200)
  assert config.data.train_file == str(tmp_path / "data" / "en_ewt-ud-dev.iob2")
  assert f"--data={tmp_path / 'data' / 'en_ewt-ud-test.iob2'}" in of_entities
  config = flags.read_arguments(similarity, fine_tune.PROGRAM).config
  assert config.data.train_file == str(tmp_path / "data" / "glue" / "STS-B" / "train.tsv.gz")
  assert f"--data={tmp_path / 'data' / 'glue' / 'STS-B' / 'dev.tsv.gz'}" in of_similarity


@pytest.mark.parametrize("name", [name for name in FINE_TUNINGS if name.startswith("tagging")])
def test_every_tagging_is_a_config_that_finetune_takes(name, data, tmp_path):
  argv = ["--study=e2", f"--fine_tune={name}", f"--data={data}", f"--output={tmp_path}"]
  asked, _ = command.asked_for(argv)
  (search, _) = asked.commands(asked.cells[0])[-2:]
  config = flags.read_arguments(asked.filled(search, asked.cells[0])[1:], fine_tune.PROGRAM).config
  needed_files.check(config, download=False)
  assert config.data.train_file == str(data / "en_ewt-ud-train.conllu")
  assert len(config.data.labels.split(",")) == 17 and config.own.task == "tagging"


@pytest.mark.parametrize("name", GLUE)
def test_every_glue_task_is_a_config_that_finetune_takes(name, data, tmp_path):
  shutil.copytree(data, tmp_path / "data")
  place = tmp_path / "data" / "glue" / TASKS[name].folders[0]
  place.mkdir(parents=True)
  for split in ("train", "dev_matched") if name == "mnli" else ("train", "dev"):
    (place / f"{split}.tsv").write_text("")
  argv = ["--paper=amos", "--tiny", "--budget=4000", f"--fine_tune={name}", "--only=pos"]
  asked, _ = command.asked_for([*argv, f"--data={tmp_path / 'data'}", f"--output={tmp_path}"])
  search = asked.commands(asked.cells[0])[-1]
  assert search[0] == "finetune.main"
  config = flags.read_arguments(asked.filled(search, asked.cells[0])[1:], fine_tune.PROGRAM).config
  needed_files.check(config, download=False)
  assert (config.tasks, config.data.directory, config.search.num_seeds) == (name, str(place.parent), 1)
  assert asked.fine_tunings(8) == {f"{name}/pretrained": 8}


@pytest.mark.parametrize(
  ("flags", "code", "line"),
  [
    (("--paper=coco",), 2, "unknown paper 'coco'; did you mean 'coco_lm'"),
    (("--study=e99",), 2, "unknown study 'e99'"),
    (("--paper=coco_lm",), 2, "--budget is missing"),
    (("--study=e1", "--budget=-1"), 2, "--budget=-1: expected at least 1"),
    (("--study=e1", "--tiny"), 2, "--tiny needs --paper"),
    (("--study=e1", "--rows=mlmm"), 2, "unknown row 'mlmm'; did you mean 'mlm'"),
    (("--study=e1", "--config.train.total=1"), 2, "mlm: "),
    (("--study=e1", "--config.seed=7"), 2, "--config.seed=7: every run has its own; use"),
    (("--study=e1", "--config.train.total_steps=8"), 2, "total_steps=8: every run has its own; use"),
    (
      ("--study=e8_rates", "--config.optimizer.learning_rate=1e-3"),
      2,
      "learning_rate=1e-3: the rows differ in this field; remove the flag",
    ),
    (("--study=e2", "--data=nowhere"), 3, "nowhere: no data for any probe"),
    (
      ("--study=e1", "--data=nowhere"),
      3,
      "nowhere: tagging_50 needs UD_English-EWT/ with *-ud-train*.conllu",
    ),
    (
      ("--study=e1", "--data=nowhere", "--fine_tune=mnli"),
      3,
      "nowhere: mnli needs glue/MNLI/ with train.tsv, dev_matched.tsv, plain",
    ),
    (
      ("--study=e2", "--fine_tune=taging_50"),
      2,
      "unknown fine-tuning 'taging_50'; did you mean 'tagging_50'",
    ),
    ((), 2, "one of the arguments --paper --study is required"),
  ],
)
def test_a_mistake_is_one_line(data, tmp_path, capsys, flags, code, line):
  assert command.main([f"--data={data}", f"--output={tmp_path / 'out'}", *flags]) == code
  error, *ways = capsys.readouterr().err.strip().splitlines()
  assert line in error and all(way.startswith("  --") for way in ways)
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("flags", "output"),
  [
    (("--paper=coco_lm",), "runs/ablations_coco_lm"),
    (("--paper=coco_lm", "--tiny"), "runs/ablations_coco_lm_tiny"),
    (("--study=e2",), "runs/ablations_e2"),
    (("--study=e2", "--output=there"), "there"),
  ],
)
def test_without_an_output_the_table_has_a_folder_of_its_name(flags, output, data):
  asked, _ = command.asked_for([*flags, "--budget=20000", f"--data={data}"])
  assert str(asked.output) == output


def test_some_rows_have_only_the_contrasts_between_them():
  flags = ["--study=e8", "--data=there", "--table"]
  assert command.asked_for(flags)[0].study.contrasts == STUDIES["e8"].contrasts
  assert not command.asked_for([*flags, "--rows=mlm"])[0].study.contrasts


def test_the_command_writes_the_table_and_goes_on(data, tmp_path, monkeypatch, capsys):
  commands = Commands({"rtd_only 0 main": STOPPED})
  monkeypatch.setattr(cells, "run_child", commands)
  flags = ["--paper=coco_lm", "--tiny", "--rows=rtd_only", "--budget=300", "--seeds=2"]
  flags += [f"--data={data}", f"--output={tmp_path / 'out'}"]
  assert command.main(flags) == STOPPED
  assert command.main([*flags, "--table"]) == 0
  assert "Open, 3 of 4 cells: coco_lm_tiny seeds 1; rtd_only seeds 0, 1." in " ".join(
    capsys.readouterr().out.split()
  )
  assert command.main(flags) == 0
  written = (tmp_path / "out" / "ablations.md").read_text()
  assert "MNLI -0.1/-0.1, average -0.4" in written and "Open" not in written
  with contextlib.suppress(FileNotFoundError):
    assert not list((tmp_path / "out").rglob("lock"))
