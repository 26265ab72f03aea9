"""The fresh process of the self-check: `python -m pretrain.export.check.torch_check FOLDER NPZ LAYOUT`.

Loads an export as a user would, runs it on texts, and prints the differences as one JSON line. The caller
reports an exception. Needs the export extra.
"""

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from safetensors.torch import load_file

from pretrain.embed.schema import SIDES, EmbeddingSchema
from pretrain.export import embedding_files, folders, torch_pooling
from pretrain.export.check import torch_forward, torch_own
from pretrain.export.stock.pre_norm_config import NEW_SPELLING, OLD_SPELLING
from pretrain.models.layers import encoder_config

OF_TEXTS = slice(None)  # `where` for logits of texts: compare all of them


class Worst:
  """The largest differences so far."""

  def __init__(self) -> None:
    self.hidden = 0.0
    self.logits: float | None = None
    self.vectors: float | None = None

  def add_hidden(self, output: torch.Tensor, expected: np.ndarray, mask: np.ndarray) -> None:
    """Compares hidden states [batch, length, embed] at tokens only, since padding has no defined value."""
    self.hidden = max(self.hidden, _difference(output.numpy()[mask > 0], expected[mask > 0]))

  def add_logits(self, output: torch.Tensor, expected: np.ndarray, where: np.ndarray | slice) -> None:
    """Compares logits; the difference is divided by max(1, largest |logit|).

    `where` is the mask of tokens, [batch, length] bool; `OF_TEXTS` for logits of texts.
    """
    actual, wanted = output.numpy()[where], expected[where]
    difference = _difference(actual, wanted) / max(1.0, float(np.abs(wanted).max()))
    self.logits = max(self.logits or 0.0, difference)

  def add_vectors(self, output: np.ndarray, expected: np.ndarray) -> None:
    """Compares vectors [batch, embed]."""
    self.vectors = max(self.vectors or 0.0, _difference(output, expected))


def _difference(actual: np.ndarray, expected: np.ndarray) -> float:
  if actual.shape != expected.shape:
    raise ValueError(f"shapes {actual.shape} and {expected.shape}")
  difference = float(np.abs(actual.astype(np.float64) - expected).max())
  return difference if np.isfinite(difference) else float("inf")


def check_stock(folder: pathlib.Path, cases: list[dict], reference: dict[str, np.ndarray]) -> Worst:
  """Compares a stock layout through AutoModel and AutoTokenizer, without custom code."""
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
  with_head, head_info = None, {}
  name = json.loads((folder / "config.json").read_text())["architectures"][0]
  if "For" in name:
    loaded = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    with_head, head_info = loaded
  for kind, keys in {**info, **head_info}.items():
    # Unused tensors are fine in a class without a head, but missing ones would get random values.
    if kind in ("missing_keys", "mismatched_keys", "error_msgs") and keys:
      raise ValueError(f"{kind}: {sorted(map(str, keys))[:5]}")
  check_spellings(folder, model.config)
  worst, is_of_texts = Worst(), name.endswith("ForSequenceClassification")
  for number, case in enumerate(cases):
    ids, mask = reference[f"{number}/ids"], reference[f"{number}/mask"]
    inputs = _tokenized(tokenizer, case, ids, mask)
    if case["name"] == "own rows" and name.endswith("ForTokenClassification"):
      _check_words(tokenizer, case, ids, mask)
    with torch.no_grad():
      worst.add_hidden(model.eval()(**inputs).last_hidden_state, reference[f"{number}/hidden"], mask)
      if with_head is not None and f"{number}/logits" in reference:
        where = OF_TEXTS if is_of_texts else mask > 0
        worst.add_logits(_logits(with_head.eval()(**inputs)), reference[f"{number}/logits"], where)
  if (folder / embedding_files.MODULES).is_file():
    schema = EmbeddingSchema.read(folder)
    encode = encoders(folder, schema, model.eval(), tokenizer)
    for number, case in enumerate(cases):
      if (side := case["name"]) in SIDES:
        texts = [text[len(schema.prefix(side)) :] for (text,) in case["texts"]]
        worst.add_vectors(encode[side](texts), reference[f"{number}/vectors"])
  return worst


def encoders(
  folder: pathlib.Path, schema: EmbeddingSchema, model, tokenizer
) -> dict[str, Callable[[list[str]], np.ndarray]]:
  """Returns a function of texts to vectors for each side: that of sentence-transformers, if it is installed.

  Without it the class and the tokenizer of transformers compute them, pooled here.
  """
  if find_spec("sentence_transformers") is not None:
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    methods = dict(zip(SIDES, (library.encode_query, library.encode_document)))
    return {side: functools.partial(method, show_progress_bar=False) for side, method in methods.items()}

  def encode(texts: list[str], side: str) -> np.ndarray:
    inputs = tokenizer([schema.prefix(side) + text for text in texts], padding=True, return_tensors="pt")
    with torch.no_grad():
      hidden = model(**inputs).last_hidden_state
    return torch_pooling.vectors(hidden, inputs["attention_mask"], schema).numpy()

  return {side: functools.partial(encode, side=side) for side in SIDES}


def check_spellings(folder: pathlib.Path, config) -> None:
  """Raises ValueError if either spelling of ModernBERT's config.json alone gives another model than both.

  A pattern of layers that is not regular has no old spelling.
  """
  import transformers

  fields = json.loads((folder / "config.json").read_text())
  if config.model_type != "modernbert" or OLD_SPELLING[0] not in fields:
    return
  for left_out in (OLD_SPELLING, NEW_SPELLING):
    other = transformers.AutoConfig.for_model(
      **{name: fields[name] for name in fields if name not in left_out}
    )
    for name in (*NEW_SPELLING, "sliding_window"):
      if getattr(other, name) != getattr(config, name):
        raise ValueError(f"config.json without {', '.join(left_out)} has another {name}")


def _tokenized(tokenizer, case: dict, ids: np.ndarray, mask: np.ndarray):
  """Tokenizes texts or pairs with the export's tokenizer; raises ValueError if its ids are not ours."""
  columns = [list(column) for column in zip(*case["texts"])]
  inputs = tokenizer(*columns, padding=True, truncation=True, return_tensors="pt")
  for what, actual, expected in (
    ("ids", inputs["input_ids"].numpy(), ids),
    ("attention mask", inputs["attention_mask"].numpy(), mask),
  ):
    if actual.shape != expected.shape or (actual != expected).any():
      where = "shape" if actual.shape != expected.shape else int(np.argmax((actual != expected).any(0)))
      raise ValueError(
        f"the tokenizer returns other {what} for {case['name']!r} at position {where}: "
        f"{actual[0][:12].tolist()}, expected {expected[0][:12].tolist()}"
      )
  return inputs


def _check_words(tokenizer, case: dict, ids: np.ndarray, mask: np.ndarray) -> None:
  """Raises ValueError if a text given as a list of words, as for tagging, gets other ids than ours."""
  for (text,), expected, is_token in zip(case["texts"], ids, mask > 0):
    words = text.split(" ")
    # A tokenizer.json with add_prefix_space=false takes words with the space before them.
    spaced = [words[0], *(f" {word}" for word in words[1:])]
    actual, behind = (tokenizer(given, is_split_into_words=True)["input_ids"] for given in (words, spaced))
    if expected[is_token].tolist() not in (actual, behind):
      raise ValueError(f"the tokenizer returns other ids for the words {words[:5]}: {actual[:12]}")


def _logits(output) -> torch.Tensor:
  if "start_logits" in output:
    return torch.stack([output.start_logits, output.end_logits], dim=-1)
  return output.prediction_logits if "prediction_logits" in output else output.logits


def read_encoder(folder: pathlib.Path, layout: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
  """Returns the encoder of an official or `--to=torch` folder: hidden states from ids and mask."""
  if layout == "fairseq":
    with torch.serialization.safe_globals([argparse.Namespace]):
      content = torch.load(folder / "model.pt", weights_only=True)
    encoder = torch_forward.from_fairseq(content["model"], content["args"])
    return functools.partial(torch_forward.hidden_states, encoder)
  config = json.loads((folder / "config.json").read_text())
  if layout == "torch":
    state = load_file(folder / "model.safetensors")
    return functools.partial(torch_own.hidden_states, state, encoder_config(config["model"]))
  encoder = torch_forward.from_hugging_face(
    torch.load(folder / "pytorch_model.bin", weights_only=True), config
  )
  return functools.partial(torch_forward.hidden_states, encoder)


def check_plain(
  folder: pathlib.Path, layout: str, cases: list[dict], reference: dict[str, np.ndarray]
) -> Worst:
  """Compares an official or `--to=torch` folder, which transformers cannot load, on ids."""
  encode, worst = read_encoder(folder, layout), Worst()
  for number in range(len(cases)):
    ids, mask = (reference[f"{number}/{name}"] for name in ("ids", "mask"))
    with torch.no_grad():
      hidden = encode(torch.from_numpy(ids), torch.from_numpy(mask))
    worst.add_hidden(hidden, reference[f"{number}/hidden"], mask)
  return worst


def main(arguments: list[str]) -> dict[str, float | None]:
  """Runs the check; returns the fields of `reference.Report`."""
  folder, layout = pathlib.Path(arguments[0]), arguments[2]
  with np.load(arguments[1], allow_pickle=False) as file:
    reference = dict(file)
  cases = json.loads(reference.pop("cases").tobytes())
  if layout in folders.STOCK:
    worst = check_stock(folder, cases, reference)
  else:
    worst = check_plain(folder, layout, cases, reference)
  return vars(worst)


if __name__ == "__main__":
  print(json.dumps(main(sys.argv[1:])))
