"""Files a search over prompts starts from: a tiny checkpoint, and sets of SST-2."""

import pathlib

import jax

from pretrain.checkpoint import Checkpoints
from pretrain.models import heads
from pretrain.models.config import EncoderConfig
from pretrain.models.encoder import init_encoder
from tests.finetune.prompt_case import make_vocabulary

LENGTH = 32  # positions


def make_checkpoint(directory, *, head="mlm", recipe="bert_tiny") -> pathlib.Path:
  """The workdir of a run of one layer with fresh parameters and this head."""
  directory.mkdir()
  words = make_vocabulary(directory)
  config = EncoderConfig(
    vocab_size=words.size,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    mlp_size=16,
    max_length=LENGTH,
    init_stddev=0.2,
  )
  model = {name: getattr(config, name) for name in config.__dataclass_fields__}
  made = {
    "mlm": lambda: heads.init_mlm_head(jax.random.key(1), config, output_size=16),
    "rtd": lambda: heads.init_rtd_head(jax.random.key(1), config, dense=False),
  }
  encoder = jax.jit(lambda: init_encoder(jax.random.key(0), config=config, pad_id=words.special_ids.pad))()
  params = {"encoder": encoder, "heads": {head: made[head]()}}
  meta = {"config": {"model": model, "recipe": recipe}, "vocabulary_digest": words.digest, "step": 7}
  checkpoints = Checkpoints(directory, every=1, keep=1)
  checkpoints.save(7, {"params": params, "step": jax.numpy.asarray(7, jax.numpy.int32)}, meta, force=True)
  checkpoints.close()
  return directory


def write(path, rows):
  """A file of SST-2 with these texts and labels."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("\n".join(["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]) + "\n")
