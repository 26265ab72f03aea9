"""Base-size round trips: `python -m tests.base_size [LAYOUT ...]`, a part of `make test-real`.

Random parameters of whole base recipes, generator and heads included, leave through a layout and come back
by the commands a user calls. Every parameter must be bit-equal; the export checks hidden states to 1e-5.
"""

import argparse
import importlib
import pathlib
import shutil
import sys
import tempfile

import jax
import numpy as np
from ml_collections import ConfigDict

from data import vocabulary
from data.vocabulary import train as vocabulary_train
from pretrain.build import build
from pretrain.checkpoints.checkpoint import Checkpoints, load_params
from pretrain.corruption.masking import TokenIds
from pretrain.export.tensor_rows import flatten
from tests.real_weights import run

OFFICIAL = {
  "model.relative_position": "official",
  "model.relative_buckets": 64,
  "objectives.scl.head": "projection",
}
# Recipe, changes, layout.
TRIPS = (
  ("coco_lm_base", {}, "mpnet"),
  ("coco_lm_base", {}, "torch"),
  ("coco_lm_base", OFFICIAL, "layoutlmv3"),
  ("amos_base", {"model.relative_buckets": 64}, "layoutlmv3"),
  ("bert_base", {}, "bert"),
  ("electra_google_base", {}, "electra"),
)
_WORDS = "the of and to in is that it was for on are with as at by this had not but from or have an they"


def make_vocabulary(directory: pathlib.Path, kind: str) -> pathlib.Path:
  """A small vocabulary: a table may have more rows than the vocabulary has pieces."""
  rng = np.random.default_rng(0)
  sentences = [" ".join(rng.choice(_WORDS.split(), 9)) + "." for _ in range(400)]
  vocabulary_train.train(sentences, directory / kind, kind=kind, cased=False, size=70)
  return directory / kind


def save_random(recipe: str, changes: dict, words_directory: pathlib.Path, workdir: pathlib.Path) -> None:
  """Saves a checkpoint of a recipe, initial values plus noise on every array."""
  config: ConfigDict = importlib.import_module(f"configs.{recipe}").get_config()
  config.update_from_flattened_dict(changes)
  words = vocabulary.load(words_directory)
  ids = {name: getattr(words.special_ids, name) for name in ("cls", "pad", "sep", "unk", "mask")}
  params = jax.jit(build(config, TokenIds(**ids, vocab_size=words.size)).init)(jax.random.key(0))
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda leaf: jax.numpy.asarray(leaf + 0.02 * rng.standard_normal(leaf.shape, np.float32)), params
  )
  checkpoints = Checkpoints(workdir, every=1, keep=1)
  meta = {"config": config.to_dict(), "interval_sums": {}, "vocabulary_digest": words.digest}
  checkpoints.save(1, {"params": params, "step": jax.numpy.int32(1)}, meta, force=True)
  checkpoints.wait()
  checkpoints.close()
  shutil.copytree(words_directory, workdir / "vocabulary")


def different(first: pathlib.Path, second: pathlib.Path) -> list[str]:
  """Paths of parameters that are not bit-equal or on one side alone."""
  one, other = (flatten(load_params(workdir)[0]) for workdir in (first, second))
  print(f"{len(one)} arrays, {sum(leaf.size for leaf in one.values()):,} parameters", flush=True)
  return [
    path
    for path in sorted(one.keys() | other.keys())
    if path not in one or path not in other or not np.array_equal(one[path], other[path])
  ]


def main(arguments: list[str]) -> int:
  """Makes every trip; exit code 1 if one did not come back whole."""
  parser = argparse.ArgumentParser(prog="python -m tests.base_size", description=__doc__.split("\n")[0])
  parser.add_argument("layouts", nargs="*", help="default: all")
  asked, failed = parser.parse_args(arguments).layouts, 0
  with tempfile.TemporaryDirectory() as scratch:
    place = pathlib.Path(scratch)
    kinds = {kind: make_vocabulary(place, kind) for kind in vocabulary.KINDS}
    for recipe, changes, layout in TRIPS:
      if asked and layout not in asked:
        continue
      start, out, back = (place / f"{name}-{layout}" for name in ("start", "out", "back"))
      save_random(
        recipe, changes, kinds["wordpiece" if layout in ("bert", "electra") else "sentencepiece"], start
      )
      run(f"--checkpoint={start}", f"--to={layout}", f"--output={out}")
      run("import", f"--from={out}", f"--output={back}", "--allow_unmatched=*pooler*")
      wrong = different(start, back)
      failed += bool(wrong)
      print(f"{recipe} through {layout}: {f'DIFFERENT: {wrong[:5]}' if wrong else 'bit-equal'}", flush=True)
      for folder in (start, out, back):
        shutil.rmtree(folder)
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
