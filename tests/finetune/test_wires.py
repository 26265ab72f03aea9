"""What stands between a config and the parts of a search, and would be missed by either's own tests."""

import importlib
import types

import pytest

from finetune import main, needed_files
from finetune.glue.search import Glue
from finetune.papers.spaces import Cell
from finetune.search import best_model, session
from finetune.search.classification import HeadSettings
from finetune.search.summary import Evaluation, Record
from pretrain import main as pretraining
from pretrain.command import flags

_KINDS = {
  "glue": "finetune.glue.search.Glue",
  "squad": "finetune.squad.search.Squad",
  "prompt": "finetune.prompt.search.Prompts",
  "demo": "finetune.docs.task.Docs",
}


@pytest.mark.parametrize("name", _KINDS)
@pytest.mark.parametrize("download", [True, False])
def test_a_config_starts_the_search_of_its_kind_and_passes_on_whether_to_download(
  name, download, monkeypatch
):
  made = []
  monkeypatch.setattr(needed_files, "check", lambda config, *, download: made.append(download))
  monkeypatch.setattr(pretraining, "use_compilation_cache", lambda: None)
  monkeypatch.setattr(session, "Session", lambda config, *_, **__: config.kind)
  for path in _KINDS.values():
    module, _, attribute = path.rpartition(".")
    stand_in = lambda kind, *, download, path=path: made.append((path, kind, download))  # noqa: E731
    monkeypatch.setattr(importlib.import_module(module), attribute, stand_in)
  arguments = [f"--config=configs/finetune_{name}.py", "--config.checkpoint=run", *["--download"] * download]
  main._kind(flags.read_arguments(arguments, main.PROGRAM), "w", print)
  assert made == [download, (_KINDS[name], "docs" if name == "demo" else name, download)]


def _record(rate: float, scores: tuple[float, ...]) -> Record:
  runs = {seed: [Evaluation(4, 1.0, {"accuracy": score})] for seed, score in enumerate(scores)}
  return Record("rte", Cell(8, rate, 2, 0.1), "accuracy", runs, ("cpu",), 1.0)


# The first has the highest median, the second the highest mean.
_RECORDS = [_record(1e-5, (0.5, 0.8, 0.81)), _record(2e-5, (0.7, 0.79, 0.9))]


def _search(summary: str = "median"):
  """Of a search what a choice needs; `ran` is what it was asked to run."""
  ran = []

  def run(cells, seeds):
    ran.append((cells, seeds))
    return [_record(cells[0].learning_rate, (0.5, 0.8, 0.81, 0.4, 0.95))]

  plan = types.SimpleNamespace(name="rte", metric="accuracy", summary=summary, keeps_weights=True)
  results = types.SimpleNamespace(fingerprint_of=lambda seeds: {"seeds": seeds})
  return types.SimpleNamespace(plan=plan, results=results, run=run, ran=ran)


@pytest.mark.parametrize(
  ("summary", "rate", "seed", "value"), [("median", 1e-5, 2, 0.81), ("mean", 2e-5, 2, 0.9)]
)
def test_the_model_is_of_the_cell_that_is_best_by_the_protocols_summary(summary, rate, seed, value):
  chosen = best_model.choose(_search(summary), _RECORDS)  # pyright: ignore
  assert (chosen.cell.learning_rate, chosen.seed, chosen.value) == (rate, seed, value)


@pytest.mark.parametrize(("predict", "seed"), [(True, 4), (False, 2)])
def test_the_leaderboards_run_is_the_best_of_all_the_test_seeds(predict, seed, monkeypatch):
  search, saved = _search(), []
  monkeypatch.setattr(best_model, "save", lambda search, chosen, *_, **__: saved.append(chosen))
  monkeypatch.setattr(importlib.import_module("finetune.glue.predictions"), "is_there", lambda *_: True)
  glue = types.SimpleNamespace(
    config=types.SimpleNamespace(output=types.SimpleNamespace(predict=predict, save_model=True)),
    session=types.SimpleNamespace(test_seeds=[0, 1, 2, 3, 4], head=HeadSettings()),
    tests={"rte": None},
    encoding=lambda task: types.SimpleNamespace(divisor=1.0),
  )
  Glue.finish(glue, search, _RECORDS)  # pyright: ignore
  assert [chosen.seed for chosen in saved] == [seed]
  assert search.ran == ([([_RECORDS[0].cell], [0, 1, 2, 3, 4])] if predict else [])
