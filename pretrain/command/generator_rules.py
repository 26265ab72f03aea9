"""Rules about the generator's fields. Imports no jax."""

from collections.abc import Iterator

from pretrain.settings.field_types import Fields, show, show_value


def problems(config: Fields) -> list[str]:
  """Lines for what does not fit together where corruption.kind is 'generator'."""
  return [*_generator(config), *_heads(config), *_mixture(config)]


def without_generator(config: Fields) -> list[str]:
  """Lines for what would be ignored where corruption.kind is not 'generator'."""
  return [
    f"{show(config, name, 'corruption.kind')}: there is no generator; use corruption.kind 'generator', or "
    f"{'False' if name.endswith('frozen') else repr('')}"
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
  frozen = config["generator.frozen"]
  shared = not frozen and config["generator.share_embeddings"] == "all"
  if shared and width != config["model.hidden_size"] and config["generator.projection"] == "table":
    yield (
      f"{show(config, 'generator.hidden_size', 'generator.share_embeddings', 'generator.projection')}: "
      f"positions and norm of the encoder's width {config['model.hidden_size']} do not fit; use "
      f"share_embeddings 'tokens' or projection 'embeddings'"
    )
  if frozen and not config["generator.init_from"]:
    yield (
      "generator.frozen=True, generator.init_from='': a generator that was never trained would stay so; "
      "give the checkpoint of a trained one"
    )
  if not frozen and config["generator.loss_weight"] == 0:
    yield (
      "generator.loss_weight=0.0, generator.frozen=False: the generator would never learn; give a weight, or "
      "freeze a trained one"
    )


def _heads(config: Fields) -> Iterator[str]:
  depth, layers = config["generator.num_layers"], config["generator.mlm_layers"]
  if layers and config["generator.separate_layers"]:
    yield (
      f"{show(config, 'generator.mlm_layers', 'generator.separate_layers')}: heads on one trunk or separate "
      f"trunks; set one of them to ()"
    )
  if list(layers) != sorted(set(layers)) or (layers and not 1 <= layers[0] <= layers[-1] == depth):
    yield (
      f"{show(config, 'generator.mlm_layers', 'generator.num_layers')}: expected ascending layers, the "
      f"last being the deepest, {depth}: what lies above it would never be read"
    )
  separate = config["generator.separate_layers"]
  if separate and (len(separate) < 2 or min(separate) < 1):
    yield (
      f"generator.separate_layers={show_value(separate)}: expected the depths of two or more generators, 1 "
      "at least"
    )


def _mixture(config: Fields) -> Iterator[str]:
  mixture, weights = config["generator.mixture"], config["generator.mixture_weights"]
  heads = len(config["generator.separate_layers"]) or len(config["generator.mlm_layers"]) or 1
  shown = show(config, "generator.mixture", "generator.mlm_layers", "generator.separate_layers")
  if mixture != "none" and heads < 2:
    yield f"{shown}: a mixture needs two heads or more; name their layers, or use mixture 'none'"
  if mixture == "none" and heads > 1:
    yield f"{shown}: nothing says which head proposes the tokens; use a mixture, or one head"
  if mixture == "fixed":
    wrong = len(weights) != heads or min(weights, default=0) < 0 or abs(sum(weights) - 1) > 1e-6
    if wrong:
      yield (
        f"{show(config, 'generator.mixture', 'generator.mixture_weights')}: expected {heads} weights of at "
        f"least 0 that add up to 1"
      )
  elif weights:
    yield (
      f"{show(config, 'generator.mixture', 'generator.mixture_weights')}: only mixture 'fixed' reads "
      f"weights; use it, or ()"
    )
  if mixture == "adversarial" and config["generator.frozen"]:
    yield (
      f"{show(config, 'generator.mixture', 'generator.frozen')}: a frozen generator cannot learn against "
      f"the encoder; use another mixture, or do not freeze it"
    )
  is_adversarial = mixture == "adversarial" and heads > 1
  if is_adversarial and config["generator.share_embeddings"] == "none":
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
