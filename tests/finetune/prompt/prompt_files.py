"""Files a search over prompts starts from: a tiny checkpoint, and sets of SST-2."""

import pathlib

import jax

from configs import finetune_prompt
from finetune.prompt.search import Prompts
from finetune.search.session import Session
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.models import heads
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import EncoderConfig
from pretrain.stop import StopRequest
from tests.finetune.prompt.prompt_case import make_vocabulary

LENGTH = 32  # positions
SPLITS = (13, 21)
RATES = (1e-3, 1e-2)  # one that learns nothing, and one that learns one of the splits


def make_checkpoint(directory: pathlib.Path) -> None:
  """Writes the workdir of a run of one layer with fresh parameters and a head for masked words."""
  directory.mkdir()
  words = make_vocabulary(directory)
  sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_size": 16, "max_length": LENGTH}
  config = EncoderConfig(vocab_size=words.size, init_stddev=0.2, **sizes)
  model = {name: getattr(config, name) for name in config.__dataclass_fields__}
  head = heads.init_mlm_head(jax.random.key(1), config, output_size=16)
  encoder = jax.jit(lambda: init_encoder(jax.random.key(0), config=config, pad_id=words.special_ids.pad))()
  params = {"encoder": encoder, "heads": {"mlm": head}}
  meta = {"config": {"model": model, "recipe": "bert_tiny"}, "vocabulary_digest": words.digest, "step": 7}
  checkpoints = Checkpoints(directory, every=1, keep=1)
  checkpoints.save(7, {"params": params, "step": jax.numpy.asarray(7, jax.numpy.int32)}, meta, force=True)
  checkpoints.close()


def write(path, rows):
  """A file of SST-2 with these texts and labels."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("\n".join(["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]) + "\n")


def make_place(root: pathlib.Path) -> pathlib.Path:
  """A folder with a checkpoint, two draws of SST-2 and its development set: 'b' is great, 'a' is not."""
  make_checkpoint(root / "checkpoint")
  rows = [("a c", 0), ("b c", 1), ("a d", 0), ("b d", 1)]
  for seed in SPLITS:
    for name, order in (("train", rows), ("dev", rows[::-1])):
      write(root / "kshot" / "SST-2" / f"2-{seed}" / f"{name}.tsv", order)
  write(root / "glue" / "SST-2" / "dev.tsv", [("a e", 0), ("b e", 1), ("c", 0), ("d", 1), ("b a", 1)])
  return root


def make_config(place: pathlib.Path, **changed):
  """A small grid on `make_place`."""
  config = finetune_prompt.get_config()
  given = {
    "checkpoint": str(place / "checkpoint"),
    "tasks": "sst2",
    "data.directory": str(place / "glue"),
    "data.eval_batch_size": 4,
    "prompt.directory": str(place / "kshot"),
    "prompt.shots": 2,
    "prompt.splits": SPLITS,
    "prompt.max_length": LENGTH,
    "prompt.num_samples": 2,
    "prompt.num_steps": 40,
    "prompt.eval_every": 10,
    "search.batch_sizes": (2,),
    "search.learning_rates": RATES,
  }
  config.update_from_flattened_dict(given | changed)
  return config


def make_search(place: pathlib.Path, workdir, stop=None, **changed) -> Prompts:
  """The search of `make_config`."""
  session = Session(make_config(place, **changed), str(workdir), stop=stop or StopRequest())
  return Prompts(session, download=False)
