"""Small encoders for each stock class, random parameters, and what a user's PyTorch computes with them."""

import functools
import json

import jax
import numpy as np
from safetensors.numpy import save_file

from data.vocabulary import SpecialIds
from pretrain.export.stock import convert
from pretrain.models import encoder
from pretrain.models import heads as head_models
from pretrain.models.layers import EncoderConfig

LENGTH = 37  # more than 2 x 8 distances, so that T5's far buckets are there, too
_SIZES = {
  "vocab_size": 40,
  "hidden_size": 24,  # a head of 12: its root is not a power of two
  "num_layers": 2,
  "num_heads": 2,
  "mlp_size": 20,
  "max_length": LENGTH,
  "dtype": "float32",
}
_OFFICIAL = {"relative_position": "official", "relative_buckets": 16, "relative_max_distance": 24}
_DISENTANGLED = {"relative_position": "disentangled", "relative_buckets": 16, "relative_max_distance": 24}
_PRE = {"relative_position": "none", "position": "rope", "norm_placement": "pre", "mlp": "gated"}
_PRE |= {"attention_bias": False, "mlp_bias": False, "norm_bias": False, "window": 12}
_BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
_RMS = _SIZES | _PRE | {"norm": "rmsnorm", "embedding_norm": False, "activation": "silu"}
CASES = {  # name: layout, encoder, id of [PAD]
  "mpnet": ("mpnet", EncoderConfig(**_SIZES), 1),
  "layoutlmv3": ("layoutlmv3", EncoderConfig(**_SIZES, **_OFFICIAL), 3),
  "layoutlmv3 with segments": ("layoutlmv3", EncoderConfig(**_SIZES, num_segments=2), 0),
  "bert": ("bert", EncoderConfig(**_SIZES, relative_position="none"), 0),
  "bert with segments": ("bert", EncoderConfig(**_SIZES, relative_position="none", num_segments=2), 1),
  "electra": ("electra", EncoderConfig(**_SIZES, relative_position="none", layer_norm_eps=1e-12), 1),
  "deberta-v2": ("deberta-v2", EncoderConfig(**_SIZES, **_DISENTANGLED, position="none"), 1),
  "modernbert": (
    "modernbert",
    EncoderConfig(**_SIZES | _PRE | {"num_layers": 4}, global_every=3, rope_theta=5e4),
    1,
  ),
  "modernbert with biases": (
    "modernbert",
    EncoderConfig(**_SIZES | _PRE | _BIASES, global_layers=(1,), activation="silu"),
    0,
  ),
  "ultrabert": ("ultrabert", EncoderConfig(**_RMS, global_every=2, rope_theta_local=500.0), 1),
  "eurobert": ("eurobert", EncoderConfig(**_RMS | {"mlp_bias": True}, rope_theta=900.0), 3),
}


def spread(tree: dict, width: float = 0.3, seed: int = 0) -> dict:
  """Random numbers around 0, of scales around 1: at fresh values a wrong map would not show."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf) -> np.ndarray:
    return (float(path[-1].key == "scale") + width * rng.normal(size=leaf.shape)).astype(np.float32)

  return jax.tree_util.tree_map_with_path(draw, tree)


def random_params(config: EncoderConfig, *heads: str, with_generator: bool = False) -> dict:
  """An encoder, which is the same whatever else is asked for, the heads named, and some of a generator."""
  key, size = jax.random.key(0), config.hidden_size

  def linear(outputs: int) -> dict:
    return {"kernel": np.zeros((size, outputs)), "bias": np.zeros(outputs)}

  makers = {
    "rtd": lambda: head_models.init_rtd_head(key, config, dense=False),
    "context rtd": lambda: head_models.init_rtd_head(key, config, dense=True, context=True),
    "dense rtd": lambda: head_models.init_rtd_head(key, config, dense=True),
    "mlm": lambda: head_models.init_mlm_head(key, config, output_size=size),
    "clm": lambda: head_models.init_clm_head(key, config),
    "classification": lambda: head_models.init_classification_head(key, config, num_outputs=3),
    "tagging": lambda: linear(4),
    "wide tagging": lambda: linear(12),
    "question_answering": lambda: linear(2),
  }

  def make() -> dict:
    embeddings, trunk = encoder.init_embeddings(key, config), encoder.init_trunk(key, config)
    embeddings["token"] = encoder.init_token_table(key, config, pad_id=0)
    params = {"encoder": {"embeddings": embeddings, "trunk": trunk}}
    if with_generator:
      params["generator"] = {"trunk": trunk, "mixture": {"kernel": np.zeros((size, 1))}}
    if heads:
      params["heads"] = {name.split()[-1]: makers[name]() for name in heads}
    return params

  return spread(jax.eval_shape(make))


def in_class(name: str, params: dict, **task) -> convert.StockModel:
  """Parameters of a case in its class, fine-tuned on a task."""
  layout, config, pad_id = CASES[name]
  ids = SpecialIds(cls=2, pad=pad_id, sep=4, unk=5, mask=6)
  return convert.to_stock(params, config, layout=layout, special_ids=ids, task=task)


def exported(name: str, *heads: str, with_generator: bool = False, **task):
  """(params, StockModel) of a case with random parameters."""
  params = random_params(CASES[name][1], *heads, with_generator=with_generator)
  return params, in_class(name, params, **task)


def write_folder(folder, model: convert.StockModel) -> None:
  """What `from_pretrained` reads."""
  folder.mkdir(exist_ok=True)
  save_file(model.state, folder / "model.safetensors", metadata={"format": "pt"})
  (folder / "config.json").write_text(json.dumps(model.config), encoding="utf-8")


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
  """Ids and mask [3, LENGTH]: a full row, a padded one, a short one."""
  ids = np.random.default_rng(1).integers(7, 40, (3, LENGTH))
  mask = np.arange(LENGTH) < np.array([[LENGTH], [20], [5]])
  return np.where(mask, ids, CASES[name][2]), mask


@functools.cache
def our_hidden(name: str) -> np.ndarray:
  """[3, LENGTH, embed] that the encoder of a case computes for the batch."""
  _, config, pad_id = CASES[name]
  ids, mask = batch(name)
  run = jax.jit(lambda tree: encoder.encode(tree, config, ids, mask, pad_id=pad_id)[1].last)
  return np.asarray(run(random_params(config)["encoder"]))


def run_torch(model, name: str):
  """The model's output on the batch, as arrays."""
  import torch

  ids, mask = batch(name)
  with torch.no_grad():
    output = model.eval()(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask).long())
  return {key: value.numpy() for key, value in output.items()}


def assert_same_params(found: dict, expected: dict) -> None:
  """Names and bits."""
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
