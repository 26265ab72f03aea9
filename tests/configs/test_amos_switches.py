"""Run: pytest tests/configs/test_amos_switches.py. What every row of AMOS's tables does to the model.

The docstring of a check says what must change and what must not, beside the recipe with the same seed,
parameters and batch. Nothing in the generator drops out, so what its heads say can be compared by number.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.ablations.amos import ROWS
from pretrain.corruption import generator, mixture
from tests.configs.ablation_case import (
  BATCH,
  FAST_COMPILE,
  NO_MLM,
  RTOL,
  SAME_PARAMETERS,
  Case,
  Proposed,
  changed,
  flat,
  full_difference,
  full_recipe,
  full_shapes,
  measure,
  params_of,
  propose,
  recipe_of,
  terms,
  with_leaves,
)
from tests.configs.rare_rows import marked
from tests.pretrain.small_recipe import LENGTH, TOKENS, small_batch

PARENT = Case("amos")
SWITCH = Case("amos", "layer_switch")
MIXTURE = "generator/mixture/kernel"
MIDDLES = (0.1, 0.5, 0.9)  # of the three parts of a run


def _layer_losses(proposed: Proposed) -> dict[str, float]:
  return {name: value for name, value in proposed.sums.items() if name.startswith("generator_loss_layer_")}


def _assert_same_heads(row: Proposed, parent: Proposed) -> None:
  """The same tokens are masked, and heads on the same layers say the same about them."""
  np.testing.assert_array_equal(row.selected, parent.selected)
  both = _layer_losses(row).keys() & _layer_losses(parent).keys()
  assert both
  for name in both:
    np.testing.assert_allclose(row.sums[name], parent.sums[name], rtol=RTOL, err_msg=name)


# The mixture.


def _check_unlearned(row: Case) -> Proposed:
  """No mixture vector, no path from the encoder to the generator; heads and their losses as they were."""
  assert changed(row) == {"mixture.mixture"}
  assert full_difference("amos", row.row) == ({MIXTURE}, {}, {})
  assert terms(row) == terms(PARENT) == {"generator_loss", "rtd_loss"}
  proposed, parent = propose(row), propose(row.parent)
  assert parent.encoder_trains_generator and not proposed.encoder_trains_generator
  _assert_same_heads(proposed, parent)
  return proposed


def random_layer() -> None:
  """One head for every masked position, each as likely; its token is the one that head alone would draw."""
  row = Case("amos", "random_layer")
  proposed = _check_unlearned(row)
  used = proposed.positions < LENGTH
  heads = np.argmax(proposed.weights, axis=-1)
  np.testing.assert_array_equal(proposed.weights, np.eye(3)[heads])
  assert any(len(set(heads[i][used[i]])) > 1 for i in range(len(heads)))
  alone = [propose(SWITCH, progress=progress).input_ids for progress in MIDDLES]
  rows, slots = np.nonzero(used)
  places = (rows, proposed.positions[rows, slots])
  expected = np.stack(alone)[(heads[rows, slots], *places)]
  np.testing.assert_array_equal(proposed.input_ids[places], expected)
  keys, many = small_batch(2_000).row_keys, jnp.zeros((3, 2_000, 5, 1))
  drawn = mixture.mixture_weights(recipe_of(row).mixture, {}, many, row_keys=keys, progress=jnp.zeros(2_000))
  # 10,000 draws: a standard deviation of 0.0047.
  np.testing.assert_allclose(np.mean(drawn, axis=(0, 1)), 1 / 3, atol=0.02)


def layer_switch() -> None:
  """The first head for the first third of the run, the second for the next, the third for the last."""
  _check_unlearned(SWITCH)
  parts = {0.0: 0, 0.1: 0, 0.33: 0, 0.34: 1, 0.5: 1, 0.66: 1, 0.67: 2, 0.9: 2, 1.0: 2}
  for progress, head in parts.items():
    weights = propose(SWITCH, progress=progress).weights
    np.testing.assert_array_equal(weights, np.broadcast_to(np.eye(3)[head], weights.shape))
  ids = [propose(SWITCH, progress=progress).input_ids for progress in MIDDLES]
  assert all(np.any(ids[i] != ids[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def no_adv() -> None:
  """Weights of 1/3; nothing the encoder says reaches the generator; tokens as of a mixture vector of 0."""
  row = Case("amos", "no_adv")
  proposed = _check_unlearned(row)
  assert np.all(proposed.weights == np.float32(1 / 3))
  level = with_leaves(params_of(PARENT), jnp.zeros_like, MIXTURE)
  np.testing.assert_array_equal(proposed.input_ids, propose(PARENT, level).input_ids)
  loud = with_leaves(params_of(PARENT), lambda kernel: 30 * kernel, MIXTURE)
  assert np.any(proposed.input_ids != propose(PARENT, loud).input_ids)
  assert measure(Case("amos", "no_adv", NO_MLM)).is_zero("generator")
  heard = measure(Case("amos", "", NO_MLM))
  assert heard.is_everywhere("generator/trunk") and heard.is_everywhere(MIXTURE)


def final_weights() -> None:
  """The given weights at every position from the first step to the last; the tokens follow them."""
  row = Case("amos", "final_weights", (("generator.mixture_weights", (0.5, 0.25, 0.25)),))
  weights = [_check_unlearned(row).weights, propose(row, progress=0.9).weights]
  assert all(np.all(found == np.array([0.5, 0.25, 0.25])) for found in weights)
  deepest = Case("amos", "final_weights", (("generator.mixture_weights", (0.0, 0.0, 1.0)),))
  np.testing.assert_array_equal(propose(deepest).input_ids, propose(SWITCH, progress=0.9).input_ids)


def adv_mlm() -> None:
  """The encoder's gradient enters the heads' logits; it did not; values stay.

  That it is multiplied is in `tests/pretrain/ops/vocab/test_mixture_sampling.py`.
  """
  row = Case("amos", "adv_mlm", NO_MLM)
  assert changed(row) == {"mixture.adv_mlm_multiplier"}
  assert recipe_of(row).mixture.adv_mlm_multiplier == 0.1
  assert full_difference("amos", "adv_mlm") == SAME_PARAMETERS
  measured, parent = measure(row), measure(row.parent)
  np.testing.assert_allclose(measured.loss, parent.loss, rtol=RTOL)
  assert parent.is_zero("generator/mlm_head") and measured.is_everywhere("generator/mlm_head")
  np.testing.assert_allclose(measured.gradient[MIXTURE], parent.gradient[MIXTURE], rtol=1e-4, atol=1e-6)


def no_reversal() -> None:
  """Nothing the encoder says reaches the generator, its mixture vector stays where it was; values stay."""
  row = Case("amos", "no_reversal", NO_MLM)
  assert changed(row) == {"mixture.reversal_multiplier"}
  assert full_difference("amos", "no_reversal") == SAME_PARAMETERS
  measured, parent = measure(row), measure(row.parent)
  np.testing.assert_allclose(measured.loss, parent.loss, rtol=RTOL)
  assert measured.is_zero("generator") and measured.is_everywhere("encoder")
  assert parent.is_everywhere(MIXTURE)


# Which head trains what.


@functools.cache
def _reach(case: Case) -> list[dict[str, np.ndarray]]:
  """For every head the gradient of what it reads, {path: array}, the encoder's embeddings as 'shared'."""
  recipe, params = recipe_of(case), params_of(case)
  masking = recipe.mask(BATCH).corrupted.masking

  def size(parts, head):
    fixed = (recipe.generator, masking, BATCH.ids != TOKENS.pad, TOKENS)
    output = generator.run(parts["generator"], parts["shared"], *fixed, row_keys=None)
    return jnp.sum(output.features[head] ** 3)

  parts = {"generator": params["generator"], "shared": params["encoder"]["embeddings"]}
  gradient = jax.jit(jax.grad(size), compiler_options=FAST_COMPILE)
  heads = range(len(recipe.generator.mlm_layers))
  return [flat(jax.device_get(gradient(parts, jnp.asarray(head)))) for head in heads]


def no_stopgrad() -> None:
  """A head's gradient reaches every layer below it, where it reached its own block only; values stay."""
  row = Case("amos", "no_stopgrad")
  assert changed(row) == {"generator.detach_blocks"}
  assert full_difference("amos", "no_stopgrad") == SAME_PARAMETERS
  np.testing.assert_array_equal(propose(row).input_ids, propose(PARENT).input_ids)
  _assert_same_heads(propose(row), propose(PARENT))
  for case, lowest in ((PARENT, lambda head: head), (row, lambda head: 0)):
    for head, gradient in enumerate(_reach(case)):
      reached = np.any(gradient["generator/trunk/layers/up/kernel"], axis=(1, 2))
      np.testing.assert_array_equal(reached, [lowest(head) <= layer <= head for layer in range(3)])
      assert np.any(gradient["shared/token/embedding"]) == (lowest(head) == 0)


def _check_separate(name: str, *depths: int) -> None:
  """A trunk, head, positions, norm for each depth; token table, mixture vector and encoder as they were."""
  found, shapes = full_difference("amos", name), full_shapes("amos", name)
  own = ("embeddings", "mlm_head", "trunk")
  assert all(path.split("/")[:2] in [["generator", part] for part in own] for path in found.removed)
  parts = {tuple(path.split("/")[1:3]) for path in found.added}
  assert parts == {(f"member_{i}", part) for i in range(3) for part in own} and not found.resized
  found_depths = [shapes[f"generator/member_{i}/trunk/layers/up/kernel"][0] for i in range(3)]
  assert found_depths == list(depths)
  assert MIXTURE in shapes and not any("token" in path for path in found.added)
  row = Case("amos", name)
  assert "generator.members" in changed(row) <= {"generator.members", "generator.mlm_layers"}
  assert terms(row) == terms(PARENT)
  assert recipe_of(row).masking == recipe_of(PARENT).masking


def separate_gens() -> None:
  """Generators of 4, 6 and 8 layers; the mixture over them is learned from the encoder."""
  _check_separate("separate_gens", 4, 6, 8)
  row = Case("amos", "separate_gens")
  for head, gradient in enumerate(_reach(row)):
    reached = {
      path.split("/")[1] for path, leaf in gradient.items() if path.endswith("up/kernel") and leaf.any()
    }
    assert reached == {f"member_{head}"}
    assert np.any(gradient["shared/token/embedding"])
  assert propose(row).weights.shape == propose(PARENT).weights.shape
  np.testing.assert_array_equal(propose(row).selected, propose(PARENT).selected)
  measured = measure(row)
  assert measured.is_everywhere(MIXTURE) and measured.is_everywhere("generator")


def three_4layer() -> None:
  """Generators of 4 layers each, which differ by their initial values alone."""
  _check_separate("three_4layer", 4, 4, 4)
  recipe = recipe_of(Case("amos", "three_4layer"))
  members = jax.jit(lambda: recipe.init(jax.random.key(0))["generator"], compiler_options=FAST_COMPILE)()
  assert len({str(jax.tree.map(jnp.shape, members[f"member_{i}"])) for i in range(3)}) == 1
  for part in (("trunk", "layers", "up"), ("mlm_head", "dense")):
    kernels = [functools.reduce(dict.get, part, members[f"member_{i}"])["kernel"] for i in range(3)]
    assert all(not np.allclose(kernels[i], kernels[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


# Heads and depths.


def _single(depth: int) -> None:
  """One head on a trunk of that depth, without mixture, without the encoder's gradient: plain ELECTRA."""
  name = f"gen_{depth}"
  found = full_difference("amos", name)
  assert found.removed == {MIXTURE} and not found.added
  layers = {path for path in full_shapes("amos", name) if path.startswith("generator/trunk/layers/")}
  assert found.resized.keys() == (set() if depth == 8 else layers)
  assert all((before[0], after[0]) == (8, depth) for before, after in found.resized.values())
  row = Case("amos", name)
  assert changed(row) - {"generator.members"} == {"generator.mlm_layers", "mixture.mixture"}
  assert terms(row) == terms(PARENT)
  proposed, tiny_depth = propose(row), recipe_of(row).generator.members[0].num_layers
  assert recipe_of(row).generator.mlm_layers == (tiny_depth,)
  assert full_recipe("amos", name).generator.mlm_layers == (depth,)
  assert not proposed.encoder_trains_generator and not _layer_losses(proposed)
  assert np.all(proposed.weights == 1) and proposed.weights.shape[-1] == 1
  if tiny_depth <= 3:  # as far as the recipe's heads go, it is one of them
    ids = propose(SWITCH, progress=MIDDLES[tiny_depth - 1]).input_ids
    np.testing.assert_array_equal(proposed.input_ids, ids)
    expected = _layer_losses(propose(PARENT))[f"generator_loss_layer_{tiny_depth}"]
    np.testing.assert_allclose(proposed.sums["generator_loss"], expected, rtol=RTOL)


def _heads(name: str, layers: tuple[int, ...], *, tiny: tuple[int, ...]) -> None:
  """Heads on those layers of the same trunk, a learned weight and a loss for each; the same parameters."""
  settings = full_recipe("amos", name).generator
  assert settings.mlm_layers == layers and settings.members == full_recipe("", "amos_base").generator.members
  assert full_difference("amos", name) == SAME_PARAMETERS
  row = Case("amos", name)
  assert changed(row) - {"generator.members"} == {"generator.mlm_layers"}
  proposed = propose(row)
  assert _layer_losses(proposed).keys() == {f"generator_loss_layer_{layer}" for layer in tiny}
  expected = sum(_layer_losses(proposed).values())
  np.testing.assert_allclose(proposed.sums["generator_loss"], expected, rtol=RTOL)
  _assert_same_heads(proposed, propose(PARENT))
  assert proposed.encoder_trains_generator
  assert proposed.weights.shape[-1] == len(tiny)
  np.testing.assert_allclose(np.sum(proposed.weights, axis=-1), 1, rtol=RTOL)


CHECKS = {
  "random_layer": random_layer,
  "layer_switch": layer_switch,
  "no_adv": no_adv,
  "adv_mlm": adv_mlm,
  "final_weights": final_weights,
  "no_stopgrad": no_stopgrad,
  "separate_gens": separate_gens,
  "three_4layer": three_4layer,
  "gen_4": functools.partial(_single, 4),
  "gen_6": functools.partial(_single, 6),
  "gen_8": functools.partial(_single, 8),
  "gen_12": functools.partial(_single, 12),
  "heads_48": functools.partial(_heads, "heads_48", (4, 8), tiny=(1, 3)),
  "heads_2468": functools.partial(_heads, "heads_2468", (2, 4, 6, 8), tiny=(1, 2, 3, 4)),
  "heads_all8": functools.partial(_heads, "heads_all8", (1, 2, 3, 4, 5, 6, 7, 8), tiny=(1, 2, 3, 4, 5)),
  "no_reversal": no_reversal,
}


def test_every_row_has_a_check_and_every_check_a_row():
  assert CHECKS.keys() == ROWS.keys()


RARE = ["three_4layer", "gen_6", "gen_8", "gen_12", "heads_2468", "heads_all8"]


@pytest.mark.parametrize("name", marked(ROWS, RARE))
def test_a_row_changes_what_it_names_and_nothing_else(name):
  CHECKS[name]()
