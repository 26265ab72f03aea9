"""Cuts a generator into masked language models: each head with the layers below it is one."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from configs import base
from data.errors import ConfigError
from pretrain.build import generator_config
from pretrain.models.layers import EncoderConfig
from pretrain.settings.model import GeneratorSettings


class GeneratorModel(NamedTuple):
  """A head of a generator as a model of its own."""

  name: str  # of its folder: 'generator', 'generator_layer_4', or 'generator_0' of separate ones
  params: dict  # 'encoder', and 'heads' with 'mlm'
  config: EncoderConfig


def generator_models(
  params: dict, fields: Mapping[str, Any], encoder: EncoderConfig
) -> Iterator[GeneratorModel]:
  """Yields every masked-LM head of a generator with its embeddings and its layers, from below.

  What is shared with the encoder is copied. The logits are the generator's, except that with a projection of
  the token table a number that is the same for all tokens of a position is added.

  Args:
    params: of the checkpoint, numpy arrays.
    fields: the checkpoint's `config.generator`; missing fields have their defaults.

  Raises:
    ConfigError: there is no generator, or a projection stands after its embeddings.
  """
  if "generator" not in params:
    raise ConfigError("--generator: this checkpoint has no generator; export it without\n  --generator")
  given: dict[str, Any] = base.get_config().generator.to_dict() | dict(fields)
  given |= {name: tuple(each) for name, each in given.items() if isinstance(each, list)}  # JSON has lists
  settings = generator_config(GeneratorSettings(**given), encoder)
  shared, generator = params["encoder"]["embeddings"], params["generator"]
  if settings.is_separate:
    for number, config in enumerate(settings.members):
      own = _model(generator[f"member_{number}"], shared, config, config.num_layers)
      yield GeneratorModel(f"generator_{number}", own, config)
    return
  (config,), layers = settings.members, settings.mlm_layers
  for depth in layers:
    name = f"generator_layer_{depth}" if len(layers) > 1 else "generator"
    own = _model(generator, shared, config, depth, layers.index(depth))
    yield GeneratorModel(name, own, dataclasses.replace(config, num_layers=depth))


def _model(member: dict, shared: dict, config: EncoderConfig, depth: int, index: int = 0) -> dict:
  """Returns the parameters of an encoder of `depth` layers; `index` is the head's among the inner ones."""
  embeddings = {"token": shared["token"], **member.get("embeddings", shared)}
  if "projection" in member:
    table, projection = embeddings["token"]["embedding"], member["projection"]
    if member["mlm_head"]["norm"]["scale"].shape != (config.hidden_size,):
      raise ConfigError(
        "--generator: no class projects normed embeddings (generator.projection='embeddings'); "
        "export it without\n  --generator"
      )
    embeddings["token"] = {"embedding": table @ projection["kernel"] + projection["bias"]}
  trunk = {**member["trunk"], "layers": jax.tree.map(lambda stack: stack[:depth], member["trunk"]["layers"])}
  if depth < config.num_layers and "inner_norms" in member:
    last = {
      name: np.concatenate([stack[: depth - 1], member["inner_norms"][name][index, None]])
      for name, stack in trunk["layers"]["mlp_norm"].items()
    }
    trunk["layers"] = trunk["layers"] | {"mlp_norm": last}
  return {"encoder": {"embeddings": embeddings, "trunk": trunk}, "heads": {"mlm": member["mlm_head"]}}
