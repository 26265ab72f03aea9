"""Rules about the generator's fields. Imports no jax."""

from collections.abc import Iterator

from pretrain.settings.field_types import Fields, show, show_value


def problems(config: Fields) -> list[str]:
  """Returns an error for each contradiction between fields, where corruption.kind is 'generator'."""
  return [*_generator(config), *_parted(config), *_heads(config), *_mixture(config)]


def without_generator(config: Fields) -> list[str]:
  """Returns an error for each field that has no effect where corruption.kind is not 'generator'."""
  return [
    f"{show(config, name, 'corruption.kind')}: this run has no generator; use corruption.kind 'generator', "
    f"or {'False' if name.endswith('frozen') else repr('')}"
    for name in ("generator.init_from", "generator.frozen")
    if config[name]
  ]


def _generator(config: Fields) -> Iterator[str]:
  width = config["generator.hidden_size"] or config["model.hidden_size"]
  heads = config["generator.num_heads"] or config["model.num_heads"]
  if width % heads:
    yield (
      f"{show(config, 'generator.hidden_size', 'generator.num_heads')} (0: as model.hidden_size and "
      f"model.num_heads): {heads} heads must divide the width {width}"
    )
  elif config["model.position"] == "rope" and (width // heads) % 2:
    sizes = show(config, "generator.hidden_size", "generator.num_heads", "model.position")
    yield f"{sizes}: rotary positions turn pairs of numbers; expected heads of an even width"
  frozen = config["generator.frozen"]
  shared = not frozen and config["generator.share_embeddings"] == "all"
  table = config["model.embedding_size"] or config["model.hidden_size"]
  if shared and width != table and config["generator.projection"] == "table":
    yield (
      f"{show(config, 'generator.hidden_size', 'generator.share_embeddings', 'generator.projection')}: "
      f"the encoder's positions and norm have another width, {table}; use "
      f"share_embeddings 'tokens' or projection 'embeddings'"
    )
  has_table = frozen or config["generator.share_embeddings"] == "none"
  if config["generator.projection"] == "none" and width != table and not has_table:
    names = ("generator.hidden_size", "generator.projection", "generator.share_embeddings")
    yield f"{show(config, *names)}: needs its own token table\n  --config.generator.share_embeddings=none"
  if frozen and not config["generator.init_from"]:
    yield (
      "generator.frozen=True, generator.init_from='': a frozen generator is not trained, so it must be "
      "loaded from a checkpoint\n  --config.generator.init_from=DIRECTORY"
    )
  if bool(config["generator.temperature_start"]) != bool(config["generator.temperature_decay"]):
    yield (
      f"{show(config, 'generator.temperature_start', 'generator.temperature_decay')}: a temperature "
      "that changes needs both\n"
      "  --config.generator.temperature_start=2.0 --config.generator.temperature_decay=0.1"
    )
  if not frozen and config["generator.loss_weight"] == 0:
    yield (
      "generator.loss_weight=0.0, generator.frozen=False: the generator would not be trained; set a weight, "
      "or freeze a trained one"
    )


def _parted(config: Fields) -> Iterator[str]:
  if config["generator.share_embeddings"] != "gdes":
    return
  if config["generator.frozen"]:
    yield (
      "generator.share_embeddings='gdes', generator.frozen=True: a frozen generator has no gradient to keep "
      "apart\n  --config.generator.share_embeddings=none"
    )
  for name in ("generator.separate_layers", "model.freeze_embeddings"):
    if config[name] not in ((), "none"):
      yield (
        f"{show(config, 'generator.share_embeddings', name)}: the encoder's token table is trained as a "
        f"difference to that of one generator\n  --config.generator.share_embeddings=none"
      )


def _heads(config: Fields) -> Iterator[str]:
  depth, layers = config["generator.num_layers"], config["generator.mlm_layers"]
  if layers and config["generator.separate_layers"]:
    yield (
      f"{show(config, 'generator.mlm_layers', 'generator.separate_layers')}: heads are either on one trunk "
      f"or on separate trunks; set one of the fields to ()"
    )
  if list(layers) != sorted(set(layers)) or (layers and not 1 <= layers[0] <= layers[-1] == depth):
    yield (
      f"{show(config, 'generator.mlm_layers', 'generator.num_layers')}: expected ascending layers, the "
      f"last one being {depth}, because layers above it would not be used"
    )
  separate = config["generator.separate_layers"]
  if separate and (len(separate) < 2 or min(separate) < 1):
    yield (
      f"generator.separate_layers={show_value(separate)}: expected depths of two or more generators, each at "
      "least 1"
    )
  if separate and (config["generator.frozen"] or config["generator.share_embeddings"] == "none"):
    names = ("generator.separate_layers", "generator.share_embeddings", "generator.frozen")
    yield (
      f"{show(config, *names)}: several generators read the encoder's token table\n"
      "  --config.generator.share_embeddings=tokens --config.generator.frozen=false"
    )


def _mixture(config: Fields) -> Iterator[str]:
  mixture, weights = config["generator.mixture"], config["generator.mixture_weights"]
  heads = len(config["generator.separate_layers"]) or len(config["generator.mlm_layers"]) or 1
  shown = show(config, "generator.mixture", "generator.mlm_layers", "generator.separate_layers")
  if mixture != "none" and heads < 2:
    yield f"{shown}: a mixture needs two or more heads; set their layers, or use mixture 'none'"
  if mixture == "none" and heads > 1:
    yield f"{shown}: several heads need a mixture; use another mixture, or one head"
  if mixture == "fixed":
    wrong = len(weights) != heads or min(weights, default=0) < 0 or abs(sum(weights) - 1) > 1e-6
    if wrong:
      yield (
        f"{show(config, 'generator.mixture', 'generator.mixture_weights')}: expected {heads} weights, none "
        f"negative, that add up to 1"
      )
  elif weights:
    yield (
      f"{show(config, 'generator.mixture', 'generator.mixture_weights')}: only mixture 'fixed' has "
      f"weights; use it, or ()"
    )
  if mixture == "adversarial" and config["generator.frozen"]:
    yield (
      f"{show(config, 'generator.mixture', 'generator.frozen')}: a frozen generator cannot be trained "
      f"adversarially; use another mixture, or do not freeze it"
    )
  is_adversarial = mixture == "adversarial" and heads > 1
  if is_adversarial and config["generator.share_embeddings"] in ("none", "gdes"):
    yield (
      f"{show(config, 'generator.mixture', 'generator.share_embeddings')}: the encoder would read sampled "
      f"tokens in the generator's embeddings; use share_embeddings 'tokens' or 'all'"
    )
  has_dropout = config["model.dropout"] > 0 or config["model.attention_dropout"] > 0
  if is_adversarial and config["generator.sampling_dropout"] == "eval" and has_dropout:
    yield (
      f"{show(config, 'generator.mixture', 'generator.sampling_dropout')}: the reversed gradient would not "
      f"reach a generator that samples in a second pass; use sampling_dropout 'zero' (AMOS) or 'train'"
    )
  if mixture != "adversarial" and config["generator.adv_mlm_multiplier"] != 0:
    yield (
      f"{show(config, 'generator.adv_mlm_multiplier', 'generator.mixture')}: only the adversarial mixture "
      f"has this gradient; use 0.0"
    )
