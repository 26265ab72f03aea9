"""Checkpoints with random parameters, as a run saves them, their vocabularies, and an export of each."""

import functools
import pathlib
import random
import shutil
from typing import NamedTuple

import jax
import numpy as np
import pytest

from configs import backbones, base
from data import vocabulary
from data.vocabulary import train as vocabulary_train
from pretrain.build import build
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.corruption.masking import TokenIds
from pretrain.embed.schema import FILE, EmbeddingSchema
from tests import byte_level, lines
from tests.pretrain.export.stock_cases import spread

MAX_LENGTH = 128  # tokens: most of the self-check's sentences fit
_MLM = {
  "corruption.kind": "mask",
  "objectives.rtd.weight": 0.0,
  "objectives.scl.weight": 0.0,
  "objectives.clm.weight": 0.0,
  "objectives.mlm.weight": 1.0,
}
_ELECTRA = {"objectives.scl.weight": 0.0, "objectives.clm.weight": 0.0}
_NO_RELATIVE = {"model.relative_position": "none"}
_MODERN = {f"model.{name}": value for name, value in backbones.MODERN.items()} | {
  "model.window": 16,  # 8 tokens to both sides
  "model.num_layers": 4,
}
_RMS = {"model.norm": "rmsnorm", "model.embedding_norm": False, "model.activation": "silu"}
_DEBERTA = {f"model.{name}": value for name, value in backbones.DEBERTA.items()} | {
  "model.relative_buckets": 32,  # 8 distances to both sides, then groups
  "model.relative_max_distance": 64,
  "objectives.rtd.head": "context",
}
_BERT = _MLM | _NO_RELATIVE | {"model.num_segments": 2}
_KINDS = {
  "t5": {"model.relative_buckets": 32, "model.relative_max_distance": 128},
  "wide_t5": {"model.relative_buckets": 64, "model.relative_max_distance": 128},
  "wordpiece": _BERT,
  "byte_level": _BERT,
  "electra": _NO_RELATIVE | {"model.num_segments": 2, "objectives.rtd.head": "dense"} | _ELECTRA,
  "deberta": _DEBERTA | _ELECTRA,
  "modern_mlm": _MODERN | _MLM,
  "modern_coco_lm": _MODERN,
  "modern_electra": _MODERN | _ELECTRA,
  "ultra_electra": _MODERN | _RMS,
  "euro_electra": _MODERN | _RMS | {"model.global_every": 1},
  "homeless": _MLM | _NO_RELATIVE | {"model.mlp": "gated"},
}
_RECIPES = {
  "wordpiece": "bert_wordpiece",
  "electra": "electra_google_wordpiece",
  "byte_level": "bert_byte_level",
}
_VOCABULARIES = {"wordpiece": "wordpiece", "electra": "wordpiece", "byte_level": vocabulary.TOKENIZER_JSON}
_COCO_LM = {
  "corruption.kind": "generator",
  "generator.num_layers": 1,
  "objectives.rtd.weight": 50.0,
  "objectives.clm.weight": 1.0,
  "objectives.scl.weight": 1.0,
  "objectives.scl.head": "projection",
  "objectives.scl.group_size": 2,
}


def _sentences(number: int) -> list[str]:
  rng = random.Random(0)
  words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 7))) for _ in range(200)]
  return [" ".join(rng.choices(words, k=8)) + rng.choice(".?!") for _ in range(number)]


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory) -> dict[str, pathlib.Path]:
  """Directories of a sentencepiece and a WordPiece vocabulary of 260 pieces, and of a tokenizer.json."""
  places = {}
  for kind in vocabulary.KINDS:
    places[kind] = tmp_path_factory.mktemp("vocabularies") / kind
    vocabulary_train.train(_sentences(400), places[kind], kind=kind, cased=False, size=260)
  folder = tmp_path_factory.mktemp("vocabularies") / vocabulary.TOKENIZER_JSON
  byte_level.imported(folder)
  return places | {vocabulary.TOKENIZER_JSON: folder / "v"}


@pytest.fixture(scope="session")
def _template(tmp_path_factory, vocabularies):
  """kind, more config fields as items -> config, random parameters, vocabulary of a kind."""

  @functools.cache
  def make(kind: str, fields: tuple[tuple[str, object], ...]):
    words = vocabulary.load(vocabularies[_VOCABULARIES.get(kind, "sentencepiece")])
    config = base.get_config()
    sizes = {"vocab_size": words.size, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "mlp_size": 48}
    config.model.update({**sizes, "max_length": MAX_LENGTH})
    config.update_from_flattened_dict({**_COCO_LM, **_KINDS[kind], **dict(fields)})
    config.data.length = MAX_LENGTH
    config.recipe = _RECIPES.get(kind, f"coco_lm_{kind}")
    ids = {name: getattr(words.special_ids, name) for name in ("cls", "pad", "sep", "unk", "mask")}
    init = build(config, TokenIds(**ids, vocab_size=words.size)).init
    return config.to_dict(), spread(jax.eval_shape(init, jax.random.key(0)), 0.1), words

  return make


@pytest.fixture(scope="session")
def make_workdir(tmp_path_factory, vocabularies, _template):
  """kind, more config fields, heads, step, more meta -> the workdir of a run that saved a step.

  With `heads` they are the model's only ones, as of a fine-tuned model."""

  def make(
    kind: str, fields: dict | None = None, heads: dict | None = None, step: int = 7, **meta
  ) -> pathlib.Path:
    config, params, words = _template(kind, tuple((fields or {}).items()))
    if heads is not None:
      params = {"encoder": params["encoder"], "heads": heads}
    workdir = tmp_path_factory.mktemp("runs") / kind
    state = jax.tree.map(jax.numpy.asarray, {"params": params, "step": np.int32(step)})
    checkpoints = Checkpoints(workdir, every=1, keep=1)
    meta = {"config": config, "interval_sums": {}, "vocabulary_digest": words.digest, **meta}
    checkpoints.save(step, state, meta, force=True)
    checkpoints.wait()
    checkpoints.close()
    shutil.copytree(vocabularies[_VOCABULARIES.get(kind, "sentencepiece")], workdir / "vocabulary")
    return workdir

  return make


@pytest.fixture(scope="session")
def export():
  """workdir, output, flags -> the exit code of `python -m pretrain.export`."""
  pytest.importorskip("torch", reason="needs requirements-export.txt")
  from pretrain.export import __main__

  def run(workdir, output, *flags: str) -> int:
    return __main__.main([f"--checkpoint={workdir}", f"--output={output}", *flags])

  return run


@pytest.fixture(scope="session")
def bring():
  """folder, output, flags -> the output of `python -m pretrain.export import`, which must succeed."""
  from pretrain.export import __main__

  def run(folder, output: pathlib.Path, *flags: str) -> pathlib.Path:
    assert __main__.main(["import", f"--from={folder}", f"--output={output}", *flags]) == 0
    return output

  return run


class Exported(NamedTuple):
  """An export that the session made once: read it, or change a copy."""

  workdir: pathlib.Path
  folder: pathlib.Path
  said: str  # its lines


@pytest.fixture(scope="session")
def exported(make_workdir, tmp_path_factory, export):
  """kind, flags, schema of an embedding model -> `Exported`."""

  @functools.cache
  def make(kind: str, *flags: str, schema: EmbeddingSchema | None = None, fields: tuple = ()) -> Exported:
    workdir, folder = make_workdir(kind, dict(fields)), tmp_path_factory.mktemp("exports") / "out"
    if schema:
      (workdir / FILE).write_text(schema.as_json())
    said: list[str] = []
    with lines.heard(said.append):
      assert export(workdir, folder, *flags) == 0
    return Exported(workdir, folder, "\n".join(said))

  return make
