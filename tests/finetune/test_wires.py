"""What stands between a config and the parts of a search, and data that is missing."""

import dataclasses
import importlib
import shutil
import types

import jax
import pytest

from configs import finetune_glue
from data.errors import ConfigError, DataError
from finetune import main
from finetune.glue.search import Glue
from finetune.papers.protocols import Cell
from finetune.search import session
from finetune.search.problem import HeadSettings
from finetune.search.results import Evaluation, Record
from finetune.search.search import Search
from finetune.search.session import Session
from finetune.validate import FIELDS, KINDS, SCHEMA
from pretrain.command import read_arguments
from pretrain.stop import StopRequest
from tests.finetune.glue import small_glue


def test_a_config_starts_the_search_of_its_kind_and_passes_on_whether_to_download(monkeypatch):
  made = []
  monkeypatch.setattr(session, "Session", lambda config, *_, **__: config.kind)
  for module, name in KINDS.values():
    stand_in = lambda kind, *, download, name=name: made.append((name, kind, download))  # noqa: E731
    monkeypatch.setattr(importlib.import_module(module), name, stand_in)
  for kind, name in (("glue", "Glue"), ("squad", "Squad"), ("prompt", "Prompts")):
    for download in (True, False):
      made.clear()
      arguments = [
        f"--config=configs/finetune_{kind}.py",
        "--config.checkpoint=run",
        *["--download"] * download,
      ]
      main._kind(read_arguments(arguments, main.PROGRAM))
      assert made == [(name, kind, download)]


def _record(rate: float, scores: tuple[float, ...]) -> Record:
  runs = {seed: [Evaluation(4, 1.0, {"accuracy": score})] for seed, score in enumerate(scores)}
  return Record("rte", Cell(8, rate, 2, 0.1), "accuracy", runs)


# The first has the highest median, the second the highest mean.
_RECORDS = [_record(1e-5, (0.5, 0.8, 0.81)), _record(2e-5, (0.7, 0.79, 0.9))]


def _search(summary: str = "median"):
  """Of a search what a choice needs; `ran` is what it was asked to run."""
  ran = []

  def run(cells, seeds):
    ran.append((cells, seeds))
    return [_record(cells[0].learning_rate, (0.5, 0.8, 0.81, 0.4, 0.95))]

  made = Search.__new__(Search)
  made.plan = types.SimpleNamespace(name="rte", metric="accuracy", summary=summary)
  made.results = types.SimpleNamespace(fingerprint=lambda seed: {"seed": seed})
  made.run, made.ran, made.saved = run, ran, []
  made.save_model = lambda chosen, *_, **__: made.saved.append(chosen)
  return made


def test_the_model_is_of_the_best_cell_and_the_leaderboards_run_of_all_the_test_seeds(monkeypatch):
  for summary, rate, seed, value in (("median", 1e-5, 2, 0.81), ("mean", 2e-5, 2, 0.9)):
    chosen = _search(summary).choose(_RECORDS)
    assert (chosen.cell.learning_rate, chosen.seed, chosen.value) == (rate, seed, value)
    assert chosen.fingerprint == {"seed": seed}
  monkeypatch.setattr(importlib.import_module("finetune.glue.predictions"), "is_there", lambda *_: True)
  more = [([_RECORDS[0].cell], [0, 1, 2, 3, 4])]
  for predict, sets, seed, ran in (
    (True, {"rte": None}, 4, more),
    (True, {}, 2, []),
    (False, {"rte": None}, 2, []),
  ):
    search = _search()
    glue = types.SimpleNamespace(
      config=types.SimpleNamespace(output=types.SimpleNamespace(predict=predict, save_model=True)),
      session=types.SimpleNamespace(test_seeds=[0, 1, 2, 3, 4], head=HeadSettings()),
      tests={"rte": types.SimpleNamespace(sets=sets)},  # {}: the test set is missing
      encoding=lambda task: types.SimpleNamespace(divisor=1.0),
    )
    Glue.finish(glue, search, _RECORDS)  # pyright: ignore
    assert [chosen.seed for chosen in search.saved] == [seed] and search.ran == ran


def _session(run, workdir, **fields) -> Session:
  """On SST-2, with a warm-up that fits its few rows; double underscores in names of fields are dots."""
  config = finetune_glue.get_config()
  given = {"checkpoint": str(run), "tasks": "sst2", "search__warmup_fractions": (0.1,)} | fields
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in given.items()})
  return Session(config, str(workdir), stop=StopRequest())


def test_runs_are_trained_with_the_optimizer_and_the_scale_of_their_protocol(
  small_encoder_run, small_glue_folder, tmp_path
):
  for protocol, scale, expected in (
    ("taco", 1, (0.999, 1e-8, 0.0, 1.0)),
    ("coco_lm", 5, (0.98, 1e-6, 0.01, 0.0)),
    ("amos", 5, (0.98, 1e-6, 0.01, 0.0)),
  ):
    fields = {"protocol": protocol, "data__directory": str(small_glue_folder)}
    of_protocol = _session(small_encoder_run, tmp_path, **fields)
    glue = Glue(of_protocol, download=False)
    settings = Search(glue.plans[0], of_protocol).trainer._settings
    found = (settings.adam_b2, settings.adam_eps, settings.weight_decay, settings.clip_norm)
    assert (found, glue.encoding("stsb").divisor, glue.encoding("sst2").divisor) == (expected, scale, 1)


def test_every_run_has_the_rate_and_the_steps_of_its_cell(small_encoder_run, small_glue_folder, tmp_path):
  fields = {"batch_sizes": (8,), "epochs": (2, 4), "learning_rates": (1e-2, 2e-2), "warmup_fractions": (0.5,)}
  changed = {f"search__{name}": values for name, values in fields.items()}
  directory = {"data__directory": str(small_glue_folder), "data__buckets": 1}
  (plan,) = Glue(_session(small_encoder_run, tmp_path, **changed, **directory), download=False).plans
  runs = [tuple(plan.hyper(cell, seed)) for seed, cell in enumerate(plan.cells)]
  assert runs == [(0, 1e-2, 6, 3), (1, 2e-2, 6, 3), (2, 1e-2, 12, 6), (3, 2e-2, 12, 6)]


def test_the_cells_are_one_that_suits_the_width_the_authors_best_or_their_whole_space(
  small_encoder_run, tmp_path
):
  whole = [Cell(32, rate, epochs, 0.0625) for epochs in (2, 3, 5) for rate in (1e-5, 2e-5, 3e-5, 4e-5)]
  for cells, num_seeds, expected in (
    ("one", 1, [Cell(32, 1e-3, 5, 0.1)]),
    ("best_known", 5, [Cell(32, 2e-5, 5, 0.0625)]),
    ("all", 5, whole),
  ):
    fields = {"size": "base", "search__cells": cells, "search__warmup_fractions": ()}
    found = _session(small_encoder_run, tmp_path, **fields)
    assert found.cells("sst2") == expected and len(found.seeds) == num_seeds, cells


def test_the_papers_rows_stand_in_the_report_beside_ours(small_encoder_run, small_glue_folder, tmp_path):
  for recipe, beside in (
    ("", {}),
    ("amos_base", {"AMOS base": 0.942, "ELECTRA base": 0.936, "COCO-LM base": 0.932}),
    ("roberta_base", {"RoBERTa base": 0.937}),
  ):
    fields = {"output__compare_with": recipe, "data__directory": str(small_glue_folder)}
    glue = Glue(_session(small_encoder_run, tmp_path, **fields), download=False)
    report = glue.report({"sst2": [_RECORDS[0]._replace(task="sst2")]})
    (row,) = report.rows
    assert {name: value for name, value in row.items() if " base" in name} == beside
    assert [column.header for column in report.columns if " base" in column.header] == list(beside)


def test_the_encoder_is_computed_as_the_config_says(small_encoder_run, tmp_path):
  fields = {"dropout": 0.3, "dtype": "bfloat16", "remat": "full", "scan_unroll": 0}
  changed = {f"model__{name}": value for name, value in fields.items()}
  found = _session(small_encoder_run, tmp_path, **changed)
  assert found.encoder == dataclasses.replace(found.start.encoder.config, **fields, attention_dropout=0.3)


def test_the_first_layers_of_the_checkpoint_are_kept_and_more_are_refused(small_encoder_run, tmp_path):
  whole = _session(small_encoder_run, tmp_path)
  layers = whole.start.encoder.config.num_layers
  with pytest.raises(ConfigError, match=f"\n  --config.checkpoint_layers={layers}"):
    _session(small_encoder_run, tmp_path, checkpoint_layers=layers + 1)
  assert _session(small_encoder_run, tmp_path, checkpoint_layers=layers).identity == whole.identity
  found = _session(small_glue.checkpoint(tmp_path / "two", num_layers=2), tmp_path, checkpoint_layers=1)
  assert found.encoder.num_layers == found.start.meta["config"]["model"]["num_layers"] == 1
  kernels = {len(leaf) for leaf in jax.tree.leaves(found.start.encoder.params["trunk"]["layers"])}
  assert kernels == {1}
  assert found.title == f"{tmp_path / 'two'} (its first layer)"


def test_the_step_and_the_vocabulary_are_those_that_are_named(small_encoder_run, tmp_path):
  shutil.copytree(small_encoder_run, tmp_path / "run")
  words = shutil.move(tmp_path / "run" / "vocabulary", tmp_path / "words")
  start = _session(tmp_path / "run", tmp_path, vocabulary=str(words), checkpoint_step=7).start
  assert start.encoder.vocabulary_directory == words and start.meta["step"] == 7
  with pytest.raises(DataError, match="no checkpoint of step 3"):
    _session(tmp_path / "run", tmp_path, vocabulary=str(words), checkpoint_step=3)
  with pytest.raises(DataError, match=r"--config\.vocabulary"):
    _session(tmp_path / "run", tmp_path)


def _config(module, **changed):
  config = module.get_config()
  config.update_from_flattened_dict(changed)
  return config


def test_every_setting_is_of_a_field_and_every_default_within_its_limits():
  known = SCHEMA.defaults
  assert FIELDS.keys() <= known.keys()
  for name, default in known.items():
    assert SCHEMA.value_problem(name, default) is None
    wanted = SCHEMA.kinds[name].value_type
    assert type(default) is (tuple if wanted in (tuple[int, ...], tuple[float, ...]) else wanted), name
