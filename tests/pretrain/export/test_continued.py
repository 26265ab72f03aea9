"""A stock encoder continues under recipes by its folder alone, and comes out as the class that it was."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from data import vocabulary
from data.errors import ConfigError
from data.prepare import __main__ as prepare
from pretrain import continued, main
from pretrain.checkpoints import warm_start
from pretrain.checkpoints.saved_model import open_model, tokens_of
from pretrain.command import read_arguments
from pretrain.run import make_run
from tests.data.conftest import make_documents, write_text
from tests.pretrain.export.stock.test_families import LENGTH, write


@pytest.fixture(scope="module")
def imported(tmp_path_factory, bring):
  """The import of a random RoBERTa with 2 layers of width 24, 2 heads and an MLP of 20."""
  folder = tmp_path_factory.mktemp("roberta")
  write(folder / "in", "RobertaForMaskedLM")
  return bring(folder / "in", folder / "imported")


def test_sizes_vocabulary_and_weights_are_the_folders_and_all_else_the_recipes(imported):
  for recipe, generator in (
    ("roberta_base", (4, 0, 0, 0)),
    ("coco_lm_base:tiny", (1, 0, 0, 0)),
    ("electra_base", (12, 1 * 12, 20 // 2, 1)),  # a third of two heads is one
    ("amos_base", (8, 0, 0, 0)),
  ):
    stem, _, size = recipe.partition(":")
    file = f"configs/{stem}.py"
    alone = read_arguments([f"--config={file}:{size}" if size else f"--config={file}"])
    spec = f"{file}:{size}:{imported}" if size else f"{file}:{imported}"
    arguments = read_arguments([f"--config={spec}", "--config.train.total_steps=300000"])
    config, before = arguments.config, alone.config
    model = config.model
    assert (model.num_layers, model.hidden_size, model.num_heads, model.mlp_size) == (2, 24, 2, 20)
    assert (model.max_length, model.position, model.relative_position) == (LENGTH, "learned", "none")
    assert config.data.length == LENGTH and config.data.vocabulary == f"{imported}/vocabulary"
    assert config.train.init_from == str(imported)
    made = config.generator
    assert (made.num_layers, made.hidden_size, made.mlp_size, made.num_heads) == generator, recipe
    assert all(model[name] == before.model[name] for name in continued.OF_RECIPE)
    assert config.optimizer.learning_rate == before.optimizer.learning_rate
    assert arguments.workdir == f"runs/{recipe.replace(':', '_')}_imported"


def test_a_generator_shares_projected_embeddings_and_a_folder_hides_no_size(tmp_path, bring, monkeypatch):
  write(tmp_path / "in", "ElectraForMaskedLM")
  imported = bring(tmp_path / "in", tmp_path / "imported")
  monkeypatch.chdir(tmp_path)
  (tmp_path / "tiny").mkdir()  # not a run: it has no checkpoints
  for recipe, projection in (("coco_lm_base", "embeddings"), ("electra_base", "table")):
    config = read_arguments([f"--config=configs/{recipe}.py:tiny:imported"]).config
    assert config.generator.projection == projection and config.train.init_from == "imported"
    assert config.model.embedding_size and config.train.batch_size == 32
    words = vocabulary.load(imported / "vocabulary")
    run = make_run(config, tokens_of(words), devices=jax.devices()[:1])
    shapes, origins = run.abstract_state.params, warm_start.origins(config.to_dict())
    loaded = warm_start.load_into(shapes, origins, vocabulary_digest=words.digest)
    table = loaded["encoder"]["embeddings"]["token"]["embedding"]
    np.testing.assert_array_equal(
      table, open_model(imported).open_encoder().params["embeddings"]["token"]["embedding"]
    )


def test_deberta_continues_with_its_table_of_relative_positions_and_its_own_optimizer(tmp_path, bring):
  write(tmp_path / "in", "DebertaV2ForMaskedLM")
  imported = bring(tmp_path / "in", tmp_path / "imported")
  given = load_file(tmp_path / "in/model.safetensors")["deberta.encoder.rel_embeddings.weight"]
  words = vocabulary.load(imported / "vocabulary")
  for recipe in ("continue", "taco_base", "electra_base", "coco_lm_base", "amos_base", "deberta_v3_rtd_base"):
    flags = [f"--config=configs/{recipe}.py:{imported}", "--config.data.source=installed_docs"]
    config = read_arguments(flags).config
    model = config.model
    assert (model.relative_position, model.relative_buckets, model.relative_max_distance) == (
      "disentangled",
      2 * 8,
      LENGTH,
    )
    assert config.optimizer.decay == "no_bias_norm"
    run = make_run(config, tokens_of(words), devices=jax.devices()[:1])
    shapes, origins = run.abstract_state.params, warm_start.origins(config.to_dict())
    loaded = warm_start.load_into(shapes, origins, vocabulary_digest=words.digest)
    np.testing.assert_array_equal(loaded["encoder"]["trunk"]["relative"]["embedding"], given, recipe)


def test_after_a_step_the_class_with_its_head_is_back(imported, export, tmp_path, monkeypatch):
  text = write_text(tmp_path / "text.txt", make_documents(40, seed=3))
  words, records = f"--vocabulary={imported}/vocabulary", f"{tmp_path}/records"
  assert prepare.main([f"--source={text}", words, f"--output={records}", f"--length={LENGTH}"]) == 0
  monkeypatch.chdir(tmp_path)
  flags = ["total_steps=1", "batch_size=8", "eval_every=1", "eval_batches=1", "checkpoint_every=1"]
  assert main.main([
    f"--config=configs/continue.py:task:{imported}", "--workdir=run", f"--config.data.directory={records}",
    "--config.optimizer.warmup_steps=0", "--config.optimizer.decay_steps=0", "--config.data.workers=1",
    *(f"--config.train.{flag}" for flag in flags),
  ]) == 0  # fmt: skip
  assert export("run", "out") == 0
  assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["RobertaForMaskedLM"]
  before = load_file(imported.parent / "in" / "model.safetensors")
  after = load_file(tmp_path / "out" / "model.safetensors")
  moved = {name: np.abs(after[name] - before[name]).max() for name in before if name in after}
  for name in ("lm_head.dense.weight", "roberta.embeddings.word_embeddings.weight", "lm_head.bias"):
    assert 0 < moved[name] < 1e-3, name  # one step of Adam at 1e-4


def test_a_folder_without_a_checkpoint_and_fine_tuning_are_refused(tmp_path, imported):
  from finetune.main import PROGRAM

  with pytest.raises(ConfigError, match="no checkpoint"):
    read_arguments([f"--config=configs/continue.py:{tmp_path}/"])
  with pytest.raises(ConfigError, match=f"\n  --config.checkpoint={imported}"):
    read_arguments([f"--config=configs/finetune_glue.py:{imported}"], PROGRAM)
