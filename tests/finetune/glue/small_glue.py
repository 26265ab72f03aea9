"""A checkpoint of a tiny encoder with its vocabulary, and a folder of GLUE's official layout, a few rows."""

import pathlib

import jax
import numpy as np

from configs import base
from data import vocabulary
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.models import heads
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import EncoderConfig

WORDS = ("good", "bad", "film", "a", "the", "is", "was", "very", "not", "plot", "cat", "sat", "on", "mat")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZES = {"hidden_size": 16, "num_heads": 2, "mlp_size": 32, "max_length": 32}


def checkpoint(
  directory: pathlib.Path, *, recipe: str = "tiny", num_layers: int = 1, with_clm_head: bool = False, **fields
) -> pathlib.Path:
  """Writes a run's workdir with step 7 and `vocabulary`, `fields` of the model; returns it."""
  words = directory / "vocabulary"
  words.mkdir(parents=True)
  (words / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n", encoding="utf-8")
  described = vocabulary.write_description(words, kind="wordpiece", cased=False)
  config = base.get_config()
  config.recipe = recipe
  config.model.update(
    SIZES | {"vocab_size": described.size, "init_stddev": 0.1, "num_layers": num_layers} | fields
  )
  encoder = EncoderConfig(
    **{name: config.model[name] for name in EncoderConfig.__dataclass_fields__ if name in config.model}
  )

  @jax.jit
  def made() -> dict:
    rtd = {"rtd": heads.init_rtd_head(jax.random.key(1), encoder, dense=False)}
    clm = {"clm": heads.init_clm_head(jax.random.key(0), encoder)} if with_clm_head else {}
    return {
      "encoder": init_encoder(jax.random.key(0), encoder, pad_id=described.special_ids.pad),
      "heads": rtd | clm,
    }

  params = made()
  meta = {"config": config.to_dict(), "vocabulary_digest": described.digest, "interval_sums": {}}
  meta["source"] = {"path": "elsewhere"}
  checkpoints = Checkpoints(directory, every=1, keep=1)
  checkpoints.save(7, {"params": params, "step": np.zeros((), np.int32)}, meta, force=True)
  checkpoints.close()
  return directory


def _sentence(random: np.random.Generator, label: int) -> str:
  filler = random.choice(WORDS[2:], random.integers(1, 9))
  return " ".join([*filler[:1], ("bad", "good")[label], *filler[1:]])


def glue(directory: pathlib.Path, *, rows: int = 24) -> pathlib.Path:
  """Writes SST-2 (is there 'good' or 'bad'?) and STS-B (do the sentences share it?); returns the folder."""
  random = np.random.default_rng(0)
  for split, count in (("train", rows), ("dev", 10), ("test", 6)):
    sst, sts = ["sentence\tlabel"], ["index\tgenre\tfile\tyear\told\ts1\ts2\tsentence1\tsentence2\tscore"]
    for row in range(count):
      first, second = random.integers(0, 2, 2)
      sst.append(f"{_sentence(random, first)}\t{first}")
      pair = f"{_sentence(random, first)}\t{_sentence(random, second)}"
      sts.append(f"{row}\tg\tf\t2012\to\ta\tb\t{pair}\t{4.0 if first == second else 0.5 * (row % 3)}")
    if split == "test":
      sst = ["index\tsentence", *(f"{row}\t{line.split(chr(9))[0]}" for row, line in enumerate(sst[1:]))]
      sts = [line.rsplit("\t", 1)[0] for line in sts]
    for folder, lines in (("SST-2", sst), ("STS-B", sts)):
      (directory / folder).mkdir(parents=True, exist_ok=True)
      (directory / folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
  return directory
