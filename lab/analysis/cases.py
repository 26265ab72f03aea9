"""What each layer of the generator would put in place of masked tokens, with the same noise for all.

Source: AMOS (Meng et al., 2022) table 9.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import ConfigError
from data.vocabulary import Vocabulary
from lab.analysis.outcome import LeftOut, Needs, Outcome
from lab.analysis.request import Request
from pretrain.checkpoints.opened import OpenedRun
from pretrain.corruption import generator, mixture
from pretrain.corruption.generator import GeneratorOutput, GeneratorSettings
from pretrain.corruption.masking import capacity
from pretrain.logs.examples import find_examples
from pretrain.logs.heldout import collect
from pretrain.ops.positions import scatter_positions
from pretrain.recipe import MaskedBatch
from pretrain.run import Run
from pretrain.settings.corruption import MixtureFields

_OF_TEXT = (
  "drawn: the words in brackets, and behind them what each head alone puts in their place, in the order of "
  "the columns. All words in brackets are masked; the noise is the same for every head, dropout off."
)


def measure(request: Request, parts: Sequence[str] = ()) -> Outcome:
  """The first masked token of the first held-out blocks, and what every layer draws for it.

  With the `parts` of a text, see `read_text`, its words in brackets are masked instead.
  """
  rows, shares, left_out = [], [], LeftOut()
  for name, opened in request.newest(left_out):
    with left_out.where_lacking(name):
      settings = opened.run.recipe.generator
      if settings is None:
        raise Needs(f"a generator, which {name} lacks")
      if parts:
        rows += _of_text(name, opened, parts)
        continue
      number = min(len(opened.heldout), request.rows)
      arrays = collect(opened.run, opened.params, opened.heldout, describe, rows=number)
      nothing = {"probability": np.zeros(arrays["ids"].shape)}
      of_layer = {
        layer: find_examples(
          arrays | nothing | {"guesses": arrays[layer]}, opened.vocabulary, opened.run.recipe.tokens
        )
        for layer in layers(settings)
      }
      for drawn in zip(*of_layer.values()):
        row = {"checkpoint": name, "text": drawn[0].text, "original": drawn[0].original}
        rows.append(row | {layer: example.guess for layer, example in zip(of_layer, drawn)})
      chosen = arrays["selected"]
      right = {layer: float((arrays[layer] == arrays["ids"])[chosen].mean()) for layer in of_layer}
      shares.append(f"{name}: " + ", ".join(f"{layer} {share:.1%}" for layer, share in right.items()))
  if parts:
    for row in rows:
      print(f"{row['checkpoint']}: {row['drawn']}")
    return Outcome(
      "What the layers of the generator put into a text", rows, [], [_OF_TEXT], left_out.sentences(rows)
    )
  notes = [
    "Tokens drawn from each head alone, at the masks of the run's evaluation and with the same noise, "
    f"dropout off. Of all masked tokens in {request.rows} blocks these are the original: {'; '.join(shares)}."
  ]
  return Outcome("What the layers of the generator put in", rows, [], notes, left_out.sentences(rows))


def read_text(text: str) -> list[str]:
  """What is beside and what is in the brackets of a text, by turns; [] of no text.

  ConfigError: brackets that do not pair, none, or one without words.
  """
  split = re.split(r"\[([^][]*)\]", text) if text else []
  problem = ""
  if re.search(r"[][]", "".join(split[::2])):
    problem = "its brackets do not pair"
  elif len(split) == 1:
    problem = "it has no brackets"
  elif not all(words.strip() for words in split[1::2]):
    problem = "a pair of brackets is empty"
  if problem:
    raise ConfigError(
      f"--text={text!r}: {problem}; mark words with brackets, as in 'the [cook] fried an egg'"
    )
  return split


def spans(vocabulary: Vocabulary, parts: Sequence[str]) -> tuple[list[int], list[slice]]:
  """The ids of a text, and which of them each of its brackets has; ConfigError: one splits a token."""
  ids, marked = vocabulary.encode("".join(parts)), []
  before = [vocabulary.encode("".join(parts[:number]).rstrip()) for number in range(len(parts))]
  for number in range(1, len(parts), 2):
    until, through = before[number : number + 2]
    if len(until) == len(through) or ids[: len(until)] != until or ids[: len(through)] != through:
      raise ConfigError(f"--text: [{parts[number]}] splits a token or has none; mark whole words")
    marked.append(slice(len(until), len(through)))
  return ids, marked


def _of_text(name: str, opened: OpenedRun, parts: Sequence[str]) -> list[dict[str, str]]:
  """A row for each bracket: the original and what each head draws for it.

  ConfigError: as of `spans`; or more tokens, or masks, than a block of the run has.
  """
  run, vocabulary = opened.run, opened.vocabulary
  own, marked = spans(vocabulary, parts)
  ids, length = vocabulary.with_special_ids(own), run.config.data.length
  masks, slots = sum(span.stop - span.start for span in marked), capacity(run.recipe.masking, length)
  for number, most, what in ((len(ids), length, "tokens"), (masks, slots, "tokens in brackets")):
    if number > most:
      raise ConfigError(f"--text has {number} {what}; a block of {name} has at most {most}")
  block, selected = np.full((1, length), run.recipe.tokens.pad, np.int32), np.zeros((1, length + 1), bool)
  block[0, : len(ids)] = ids
  for span in marked:
    selected[0, 1:][span] = True  # behind [CLS]
  with jax.set_mesh(run.mesh):
    program = jax.jit(functools.partial(_describe_selected, run))
    found = jax.device_get(program(opened.params, block, selected[:, :length]))
  rows, text = [], "".join(parts)
  for words, span in zip(parts[1::2], marked):
    by_layer = {layer: vocabulary.decode(found[layer][0, 1:][span]) for layer in layers(run.recipe.generator)}
    drawn = f"{words.strip()} ({' / '.join(by_layer.values())})"
    rows.append({"checkpoint": name, "text": text, "original": words.strip(), **by_layer, "drawn": drawn})
  return rows


def layers(settings: GeneratorSettings) -> list[str]:
  """What the heads are called, in their order."""
  if settings.is_separate:
    return [f"generator {number}" for number in range(len(settings.mlm_layers))]
  return [f"layer {layer}" for layer in settings.mlm_layers]


def describe(run: Run, params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
  """To be given to `collect`: 'ids', what each head draws, 0 where nothing is masked, [batch, length] int32;
  'selected' [batch, length] bool."""
  return _drawn(run, params, run.eval_batch_of(ids, index, jnp.float32(1.0)))


def _describe_selected(run: Run, params: dict, ids: jax.Array, selected: jax.Array) -> dict[str, jax.Array]:
  """As `describe` of the first batch, where `selected` [batch, length] bool tokens are all made [MASK]."""
  batch = run.eval_batch_of(ids, jnp.int32(0), jnp.float32(1.0)).batch._replace(given={"selected": selected})
  fully = dataclasses.replace(run.recipe.masking, mask_token_rate=1.0)
  return _drawn(run, params, dataclasses.replace(run.recipe, masking=fully).mask(batch))


def _drawn(run: Run, params: dict, masked: MaskedBatch) -> dict[str, jax.Array]:
  recipe, settings = run.recipe, run.recipe.generator
  assert settings is not None
  batch, corrupted = masked
  own, shared = params["generator"], params["encoder"]["embeddings"]
  masking = corrupted.masking
  output = generator.run(own, shared, settings, masking, corrupted.token_mask, recipe.tokens, row_keys=None)
  table = generator.token_table(own, shared, settings)
  drawn = draws(recipe.mixture, output, table, batch.row_keys, settings.temperature, recipe.chunk)
  found = {"ids": batch.ids, "selected": masking.selected}
  for layer, tokens in zip(layers(settings), drawn):
    found[layer] = scatter_positions(jnp.zeros_like(batch.ids), masking.positions, tokens)
  return found


def draws(
  choice: MixtureFields,
  output: GeneratorOutput,
  table: jax.Array,
  row_keys: jax.Array,
  temperature: float,
  chunk: int,
) -> list[jax.Array]:
  """[batch, slots] int32 of each head alone; arguments as of `mixture.propose`."""
  number, *shape = output.features.shape[:3]
  fixed = dataclasses.replace(choice, mixture="uniform")  # any kind without a gradient
  by_head = []
  for head in range(number):
    weights = jnp.broadcast_to(jax.nn.one_hot(head, number), (*shape, number))
    tokens, _ = mixture.propose(
      fixed, weights, output, table, row_keys=row_keys, temperature=temperature, chunk=chunk
    )
    by_head.append(tokens)
  return by_head
