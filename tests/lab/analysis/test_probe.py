"""Probes of checkpoints, by their command and while a run trains: the same numbers; mistakes refused."""

import json
import pathlib
import random
import shutil

import jax
import numpy as np
import pytest

from data import vocabulary
from data.annotated import MinimalPair
from data.errors import DataError
from lab.analysis import probe, probing
from lab.analysis.frozen_encoder import open_models
from lab.analysis.probes import MinimalPairs
from lab.analysis.probing import Probing
from pretrain.build import build
from pretrain.checkpoints.saved_model import save_params
from pretrain.reading import prepared
from tests.pretrain.small_run import (
  assert_same_params,
  metric_lines,
  run_training,
  saved_params,
  small_config,
  small_run,
)

WORDS = {"NOUN": ("ba", "dogo", "lumi"), "VERB": ("ke", "zore"), "DET": ("fi",)}


@pytest.fixture(scope="module")
def relations(tmp_path_factory) -> pathlib.Path:
  """Relations that follow from the first word; nothing for the other probes."""
  folder = tmp_path_factory.mktemp("relations")
  (folder / "SemEval2010_task8").mkdir()
  for name in ("TRAIN_FILE", "TEST_FILE_FULL"):
    texts = [f'{n}\t"<e1>{w}</e1> ke <e2>ba</e2>"\n{w}-ba\n\n' for n, w in enumerate(("dogo", "lumi") * 8)]
    (folder / "SemEval2010_task8" / f"{name}.TXT").write_text("".join(texts))
  return folder


@pytest.fixture(scope="module")
def data(relations, tmp_path_factory) -> pathlib.Path:
  """Sentences whose tags follow from their words, and relations."""
  folder, draw = tmp_path_factory.mktemp("annotated") / "data", random.Random(0)
  shutil.copytree(relations, folder)
  (folder / "UD_English-EWT").mkdir()
  for split, number in (("train", 40), ("test", 20)):
    lines = []
    for _ in range(number):
      tags = ("DET", "NOUN", "VERB", "NOUN")
      for at, (tag, head, relation) in enumerate(zip(tags, (2, 3, 0, 3), ("det", "nsubj", "root", "obj")), 1):
        lines.append(f"{at}\t{draw.choice(WORDS[tag])}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
      lines.append("")
    (folder / "UD_English-EWT" / f"x-ud-{split}.conllu").write_text("\n".join(lines))
  return folder


@pytest.fixture(scope="module", autouse=True)
def on_one_device():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    yield


def test_figures_stand_beside_those_of_the_untrained_encoder_and_of_no_model(finished, data, tmp_path):
  flags = [f"--checkpoint={finished}", f"--data={data}", f"--output={tmp_path}", "--only=pos,relation"]
  assert probe.main(flags) == 0
  found = json.loads((tmp_path / "probe.json").read_text())
  rows = {(row["probe"], row["cases"], row["read"]): row for row in found["rows"]}
  row, model = rows["part of speech", "all words", "tokens"], f"{finished} step 6"
  assert row["count"] == 80 and row["no model"] == 1.0
  assert 0.9 < row[model] <= 1.0 and 0.9 < row["untrained"] <= 1.0
  assert rows["relation", "all pairs", "last"]["no model"] == 1.0
  assert {read for name, _, read in rows if name == "relation"} == {"tokens", "middle", "last"}
  assert (tmp_path / "probe.md").is_file() and (tmp_path / "probe.csv").is_file()


def test_a_mistake_is_one_line_and_nothing_is_written(finished, data, tmp_path, capsys):
  failures = []
  for flags, code, word in [
    (("--only=poss",), 2, "'pos'"),
    (("--only=sentiment",), 3, "glue/SST-2/"),
    (("--pairs=0",), 2, "--pairs=0"),
    (("--data=nowhere",), 3, "nowhere"),
    (("--checkpoint=nowhere", "--only=pos"), 3, "nowhere"),
    (("--checkpoint=",), 2, "--checkpoint"),
  ]:
    given = [f"--checkpoint={finished}", f"--data={data}", f"--output={tmp_path / 'out'}", *flags]
    found, error = probe.main(given), capsys.readouterr().err
    if found != code or word not in error or (tmp_path / "out").exists():
      failures.append(f"{flags}: {found} {error}")
  assert not failures, "\n".join(failures)


def test_probes_are_those_for_which_there_are_data(data):
  found, skipped = probing.find(probing.Folder(data, 10, 5), [])
  assert [one.name for one in found] == ["part of speech", "dependency", "relation"]
  assert len(found[0].train) == 10 and "sentiment (glue/SST-2/" in skipped[0]


def test_the_untrained_encoder_has_the_initial_values_of_its_run_heads_and_all(finished, small_records):
  models = open_models([str(finished)], "", batch_size=4)
  untrained, trained = models.encoders["untrained"], models.encoders[f"{finished} step 6"]
  initial = jax.device_get(small_run(small_config("mlm", small_records)).init_state().params)
  asked = {"encoder": untrained.encoder.params, "heads": untrained.heads}
  jax.tree.map(np.testing.assert_array_equal, asked, initial)
  asked = MinimalPairs([MinimalPair(("ba", "ke"), ("ke", "ba"))], "order")
  assert [[one.read for one in asked.measure(encoder)] for encoder in (untrained, trained)] == [["mlm"]] * 2
  assert untrained.likelihoods([("ba", "ke")]) != trained.likelihoods([("ba", "ke")])


def test_checkpoints_share_an_untrained_encoder_unless_a_head_began_otherwise(small_records, tmp_path):
  of_rtd = {"objectives.mlm.weight": 0.0, "objectives.rtd.weight": 1.0}
  recipes = {
    "mlm": {"objectives.mlm.weight": 1.0},
    "rtd": of_rtd,
    "dense": of_rtd | {"objectives.rtd.head": "dense"},
    "taco": {"objectives.mlm.weight": 0.0, "objectives.taco.weight": 1.0},
  }
  digest = vocabulary.load(small_records / "vocabulary").digest
  for name, fields in recipes.items():
    config = small_config("mlm", small_records, fields)
    shapes = jax.eval_shape(build(config, prepared.token_ids(str(small_records))).init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    save_params(tmp_path / name, params, {"config": config.to_dict(), "vocabulary_digest": digest}, step=1)
  models = open_models([str(tmp_path / name) for name in recipes], "", batch_size=4)
  assert [*models.untrained.values()] == ["untrained", "untrained", "untrained 2", "untrained"]
  heads = {name: set(encoder.heads) for name, encoder in models.encoders.items()}
  assert heads["untrained"] == {"mlm", "rtd"} and heads["untrained 2"] == {"rtd"}
  order = [*models.encoders]
  assert all(order.index(before) < order.index(name) for name, before in models.untrained.items())


def _probe_lines(workdir) -> dict[int, list[dict]]:
  found: dict[int, list[dict]] = {}
  for line in metric_lines(workdir):
    if any(name.startswith("probe/") for name in line):
      found.setdefault(line["step"], []).append(line)
  return found


def test_a_probed_run_is_the_run_without_and_has_the_figures_of_the_command(
  finished, small_records, relations, tmp_path
):
  fields = {"train.checkpoint_steps": (1,), "train.probe_every": 3, "train.probe_data": str(relations)}
  workdir = tmp_path / "run"
  assert run_training(small_config("mlm", small_records, fields), workdir) == 0
  assert_same_params(saved_params(workdir), saved_params(finished))
  lines = _probe_lines(workdir)
  assert [*lines] == [0, 3, 6]
  of_probes = [line for found in lines.values() for line in found]
  assert [line for line in metric_lines(workdir) if line not in of_probes] == metric_lines(finished)
  assert probe.main([f"--checkpoint={workdir}", f"--data={relations}", f"--output={tmp_path}"]) == 0
  rows = json.loads((tmp_path / "probe.json").read_text())["rows"]
  expected = {
    "/".join(["probe", *(row[key].replace(" ", "_") for key in ("probe", "cases", "read"))]): row[
      f"{workdir} step 6"
    ]
    for row in rows
  }
  assert lines[6] == [{"step": 6} | expected] and len(expected) == 3
  # What an earlier start has written stays and is not measured again.
  shutil.rmtree(workdir / "checkpoints" / "6")
  again = small_config("mlm", small_records, fields | {"train.probe_every": 2})
  assert run_training(again, workdir) == 0
  assert {step: len(found) for step, found in _probe_lines(workdir).items()} == {0: 1, 3: 1, 4: 1, 6: 1}
  assert _probe_lines(workdir)[6] == lines[6]
  measured = Probing(again, str(small_records / "vocabulary"))
  assert measured.measure({"encoder": {}}, is_stopping=lambda: True) is None  # a stop is not kept waiting
  wrong = small_config("mlm", small_records, fields | {"train.probe_data": str(tmp_path)})
  with pytest.raises(DataError, match=r"train\.probe_data="):  # before the run
    run_training(wrong, tmp_path / "other")
  assert not (tmp_path / "other").exists()
