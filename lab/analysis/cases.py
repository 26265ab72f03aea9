"""Samples from each generator layer at the same masked tokens, with the same noise.

Source: AMOS (Meng et al., 2022) table 9.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lab.analysis.outcome import LeftOut, Needs, Outcome
from lab.analysis.request import Request
from pretrain.corruption import generator, mixture
from pretrain.corruption.generator import GeneratorConfig, GeneratorOutput
from pretrain.logs.examples import find_examples
from pretrain.logs.heldout import collect
from pretrain.ops.positions import scatter_positions
from pretrain.run import Run
from pretrain.settings.corruption import GeneratorSettings


def measure(request: Request) -> Outcome:
  """Compares what each generator layer samples at the first masked token of some held-out blocks."""
  rows, shares, left_out = [], [], LeftOut()
  for name, opened in request.newest(left_out):
    with left_out.where_lacking(name):
      settings = opened.run.recipe.generator
      if settings is None:
        raise Needs(f"a generator, which {name} lacks")
      number = min(len(opened.heldout), request.rows)
      arrays = collect(opened.run, opened.params, opened.heldout, describe, rows=number)
      nothing = {"probability": np.zeros(arrays["ids"].shape)}
      of_layer = {
        layer: find_examples(
          arrays | nothing | {"guesses": arrays[layer]}, opened.encoder.vocabulary, opened.run.recipe.tokens
        )
        for layer in layers(settings)
      }
      for drawn in zip(*of_layer.values()):
        row = {"checkpoint": name, "text": drawn[0].text, "original": drawn[0].original}
        rows.append(row | {layer: example.guess for layer, example in zip(of_layer, drawn)})
      chosen = arrays["selected"]
      right = {layer: float((arrays[layer] == arrays["ids"])[chosen].mean()) for layer in of_layer}
      shares.append(f"{name}: " + ", ".join(f"{layer} {share:.1%}" for layer, share in right.items()))
  notes = [
    "Tokens drawn from each head alone, at the masks of the run's evaluation and with the same noise, "
    f"dropout off. Of all masked tokens in {request.rows} blocks these are the original: {'; '.join(shares)}."
  ]
  return Outcome("What the layers of the generator put in", rows, [], notes, left_out.sentences(rows))


def layers(settings: GeneratorConfig) -> list[str]:
  """Returns the names of the generator's heads, in order."""
  if settings.is_separate:
    return [f"generator {number}" for number in range(len(settings.mlm_layers))]
  return [f"layer {layer}" for layer in settings.mlm_layers]


def describe(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """Returns 'ids', 'selected' and each generator head's samples (0 if unmasked), all [batch, length]."""
  recipe, settings = run.recipe, run.recipe.generator
  assert settings is not None
  batch, corrupted = run.eval_batch_of(ids, index, jnp.float32(1.0))
  own, shared = params["generator"], params["encoder"]["embeddings"]
  masking = corrupted.masking
  inputs = own, shared, settings, masking, corrupted.token_mask, recipe.tokens
  output = generator.run(*inputs, row_keys=None, segment_ids=corrupted.segment_ids)
  table = generator.token_table(own, shared, settings)
  drawn = draws(settings, output, table, batch.row_keys, recipe.chunk)
  found = {"ids": batch.ids, "selected": masking.selected}
  for layer, tokens in zip(layers(settings), drawn):
    found[layer] = scatter_positions(jnp.zeros_like(batch.ids), masking.positions, tokens)
  return found


def draws(
  settings: GeneratorSettings, output: GeneratorOutput, table: jax.Array, row_keys: jax.Array, chunk: int
) -> list[jax.Array]:
  """Returns the samples of each head alone, [batch, slots] int32; arguments as for `mixture.propose`."""
  number, *shape = output.features.shape[:3]
  fixed = dataclasses.replace(settings, mixture="uniform")  # any kind without a gradient
  by_head = []
  for head in range(number):
    weights = jnp.broadcast_to(jax.nn.one_hot(head, number), (*shape, number))
    tokens, _ = mixture.propose(fixed, weights, output, table, row_keys=row_keys, chunk=chunk)
    by_head.append(tokens)
  return by_head
