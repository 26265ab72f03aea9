"""Golden kind k_tokenizer: the official tokeniser's words, pieces, ids, pairs, and its dictionary."""

import tempfile
from pathlib import Path

from data.vocabulary import official as official_tokenizer
from data.vocabulary import tokenizer_files
from data.vocabulary import train as vocabulary_train
from tests.golden.compare import Checks
from tests.golden.files import Golden

_FOLDER = "tokenizer"  # beside the golden: sp.model and dict.txt
_BETWEEN = " ||| "  # in the keys of sequences: A ||| B ||| length, or A ||| length


def check_tokenizer(golden: Golden, checks: Checks) -> None:
  """Every value of the file, through a vocabulary imported as a user does it."""
  model, dictionary = (golden.directory / _FOLDER / name for name in ("sp.model", "dict.txt"))
  with tempfile.TemporaryDirectory() as temporary:
    words = vocabulary_train.import_files(
      Path(temporary) / "vocabulary",
      sp_model=str(model),
      dictionary=str(dictionary),
      cased=True,
      pretokenization="official",
    )
  processor, _ = tokenizer_files.read_sp_model(model)
  of_text = {
    "pretokenize": official_tokenizer.pretokenize,
    "tokens": lambda text: official_tokenizer.tokenize_batch(processor, [text])[0],
    "ids": words.encode,
    "decode": lambda text: words.decode(words.encode(text)),
  }
  for group, function in of_text.items():
    for text in golden.under(f"{group}/"):
      checks.compare_text(group, f"{group}/{text}", function(text))
  for group in ("pair", "single"):
    for key in golden.under(f"{group}/"):
      checks.compare_text("sequences", f"{group}/{key}", _sequence(words, key))
  _check_dictionary(golden, checks, words)


def _sequence(words, key: str) -> list[int]:
  first, *second, max_length = key.split(_BETWEEN)
  second_ids = words.encode(second[0]) if second else None
  return words.with_special_ids(words.encode(first), second_ids, max_length=int(max_length))


def _check_dictionary(golden: Golden, checks: Checks, words) -> None:
  pieces = [words.piece(i) for i in range(words.size)]
  for name in golden.under("special/"):
    wanted = getattr(words.special_ids, name, None)
    if wanted is None:  # a name looked up as a symbol
      symbol = f"[{name}]"
      wanted = pieces.index(symbol) if symbol in pieces else words.special_ids.unk
    checks.compare("dictionary", f"special/{name}", wanted)
  checks.compare("dictionary", "dict_len", words.size)
  checks.compare_text("dictionary", "symbols_first12", pieces[:12])
  checks.compare_text("dictionary", "last_symbol", pieces[-1])
