"""A text with words in brackets, and what each layer of a generator puts in their place."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data import vocabulary
from data.errors import ConfigError
from lab.analysis import cases
from lab.analysis.__main__ import main
from pretrain.corruption import generator
from pretrain.corruption.generator import GeneratorOutput
from pretrain.mesh import sharding
from pretrain.ops.positions import take_positions
from tests.pretrain.small_recipe import AMOS, LENGTH, TOKENS, VOCAB_SIZE, small_batch, small_recipe

FIRST = 20  # what the first head draws at position 0


def test_brackets_are_read_and_removed():
  assert cases.read_text("the [cook] fried [an egg].") == ["the ", "cook", " fried ", "an egg", "."]
  assert cases.read_text("") == []


@pytest.mark.parametrize(
  ("text", "line"),
  [
    ("the cook", "it has no brackets"),
    ("the [cook", "its brackets do not pair"),
    ("the cook] fried [an] egg", "its brackets do not pair"),
    ("the [[cook]]", "its brackets do not pair"),
    ("the [ ] fried [an] egg", "a pair of brackets is empty"),
  ],
)
def test_brackets_that_mark_nothing_are_one_line(text, line, finished, tmp_path, capsys):
  flags = [f"--checkpoints={finished}", f"--output={tmp_path / 'out'}", f"--text={text}"]
  assert main(flags) == 2
  error = capsys.readouterr().err
  assert f"--text={text!r}: {line}; mark words with brackets" in error and error.count("\n") == 1
  assert not (tmp_path / "out").exists()


def test_a_text_needs_a_generator_and_its_analysis(finished, tmp_path, capsys):
  flags = [f"--checkpoints={finished}", f"--output={tmp_path / 'out'}", "--text=the [cook]"]
  assert main([*flags, "--only=words"]) == 2
  assert "--text is for cases, which --only=words leaves out; add it there" in capsys.readouterr().err
  assert main([*flags, "--only=cases"]) == 3
  assert "error: cases needs a generator, which mlm lacks" in capsys.readouterr().err


def test_the_tokens_of_brackets_are_those_of_the_words_in_them(small_records):
  words = vocabulary.load(small_records / "vocabulary")
  ids, marked = cases.spans(words, cases.read_text("Ba [dogolumi], ke [zore fi] [ba]."))
  assert ids == words.encode("Ba dogolumi, ke zore fi ba.")
  assert [words.decode(ids[span]) for span in marked] == ["dogolumi", "zore fi", "ba"]
  pieces = [words.piece(number) for number in range(words.size)]
  whole = next(piece[1:] for piece in pieces if len(piece) > 3 and len(words.encode(piece[1:])) == 1)
  with pytest.raises(ConfigError, match=r"--text: \[.\] splits a token or has none; mark whole words"):
    cases.spans(words, ["", whole[0], f"{whole[1:]} ba"])


class Numbers:
  """A vocabulary of words that are their own ids."""

  def encode(self, text: str) -> list[int]:
    return [*map(int, text.split())]

  def with_special_ids(self, ids: list[int]) -> list[int]:
    return [TOKENS.cls, *ids, TOKENS.sep]

  def decode(self, ids: np.ndarray) -> str:
    return " ".join(map(str, ids.tolist()))


@pytest.fixture
def opened(monkeypatch):
  """A run whose four heads put in what marks the position, what they read there, and what the noise says."""

  def run(own, shared, settings, masking, *_, **__):
    read = take_positions(masking.masked_ids, masking.positions)
    sure = 1e4 * jax.nn.one_hot(jnp.stack([masking.positions + FIRST, read]), VOCAB_SIZE)
    heads = jnp.concatenate([sure, jnp.zeros_like(sure)])
    return GeneratorOutput(heads, heads, jnp.zeros((1, VOCAB_SIZE)))

  monkeypatch.setattr(generator, "run", run)
  monkeypatch.setattr(generator, "token_table", lambda *_: jnp.eye(VOCAB_SIZE))
  fields = {"generator.num_layers": 4, "generator.mlm_layers": (1, 2, 3, 4)}
  recipe = small_recipe({**AMOS, **fields, "corruption.mask_token_rate": 0.5})
  made = types.SimpleNamespace(
    recipe=recipe,
    config=types.SimpleNamespace(data=types.SimpleNamespace(length=LENGTH)),
    mesh=sharding.make_mesh(sharding.MeshSettings(data=1, fsdp=1, tensor=1), devices=jax.devices()[:1]),
    eval_batch_of=lambda ids, index, progress: recipe.mask(small_batch(1)._replace(ids=ids)),
  )
  params = {"generator": {}, "encoder": {"embeddings": {}}}
  return types.SimpleNamespace(run=made, params=params, vocabulary=Numbers())


def test_every_layer_fills_the_brackets_alone_with_the_same_noise(opened, capsys):
  request = types.SimpleNamespace(newest=lambda _: iter([("amos", opened)]))
  outcome = cases.measure(request, cases.read_text("90 [91] 92 93 [94 95] 96"))
  one, two = outcome.rows
  assert (one["original"], two["original"]) == ("91", "94 95") and one["text"] == "90 91 92 93 94 95 96"
  assert (one["layer 1"], two["layer 1"]) == (f"{FIRST + 2}", f"{FIRST + 5} {FIRST + 6}")  # behind [CLS]
  assert (one["layer 2"], two["layer 2"]) == (f"{TOKENS.mask}", f"{TOKENS.mask} {TOKENS.mask}")
  assert one["layer 3"] == one["layer 4"] and two["layer 3"] == two["layer 4"]
  assert one["drawn"] == f"91 ({FIRST + 2} / {TOKENS.mask} / {one['layer 3']} / {one['layer 4']})"
  assert capsys.readouterr().out == f"amos: {one['drawn']}\namos: {two['drawn']}\n"
  assert "the noise is the same for every head" in outcome.notes[0]


def test_a_text_longer_than_a_block_is_one_line(opened):
  request = types.SimpleNamespace(newest=lambda _: iter([("amos", opened)]))
  with pytest.raises(ConfigError, match=r"--text has 17 tokens; a block of amos has at most 16"):
    cases.measure(request, ["90 " * 14, "91", ""])
  with pytest.raises(ConfigError, match=r"--text has 13 tokens in brackets; a block of amos has at most 3"):
    cases.measure(request, ["90 ", "91 " * 13, ""])
