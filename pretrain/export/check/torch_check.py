"""The fresh process of the self-check: `python -m pretrain.export.check.torch_check FOLDER NPZ LAYOUT`.

Loads an export as its user would, on text, and prints one JSON line of differences. An exception is the
caller's to report. Needs the export extra.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file

from pretrain.export import layouts
from pretrain.export.check import torch_forward

OF_TEXTS = slice(None)  # where logits by text mean something


class Worst:
  """Largest differences so far."""

  def __init__(self) -> None:
    self.hidden = 0.0
    self.logits: float | None = None

  def add_hidden(self, output: torch.Tensor, expected: np.ndarray, mask: np.ndarray) -> None:
    """Compares [batch, length, embed] at tokens; what padding computes means nothing."""
    self.hidden = max(self.hidden, _difference(output.numpy()[mask > 0], expected[mask > 0]))

  def add_logits(self, output: torch.Tensor, expected: np.ndarray, where: np.ndarray | slice) -> None:
    """Compares logits where they mean something, relative to the largest if that is above 1.

    `where` are the tokens [batch, length] bool of logits by token, and `OF_TEXTS` of those by text.
    """
    actual, wanted = output.numpy()[where], expected[where]
    difference = _difference(actual, wanted) / max(1.0, float(np.abs(wanted).max()))
    self.logits = max(self.logits or 0.0, difference)

  def add_tags(self, tags: list[list[tuple[int, int, float]]], expected: np.ndarray) -> None:
    """Compares a pipeline's tags with logits [texts, length, labels]: probabilities, and none is likelier."""
    powers = np.exp(expected.astype(np.float64) - expected.max(axis=-1, keepdims=True))
    chances = powers / powers.sum(axis=-1, keepdims=True)
    for of_text, wanted in zip(tags, chances, strict=True):
      for position, label, score in of_text:
        apart = max(abs(score - wanted[position, label]), wanted[position].max() - wanted[position, label])
        self.logits = max(self.logits or 0.0, float(apart))


def _difference(actual: np.ndarray, expected: np.ndarray) -> float:
  if actual.shape != expected.shape:
    raise ValueError(f"shapes {actual.shape} and {expected.shape}")
  difference = float(np.abs(actual.astype(np.float64) - expected).max())
  return difference if np.isfinite(difference) else float("inf")


def check_stock(folder: pathlib.Path, cases: list[dict], reference: dict[str, np.ndarray]) -> Worst:
  """Through AutoModel and AutoTokenizer, without custom code."""
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
    # A class without a head leaves the head's tensors alone; a missing tensor would be drawn at random.
    if kind in ("missing_keys", "mismatched_keys", "error_msgs") and keys:
      raise ValueError(f"{kind}: {sorted(map(str, keys))[:5]}")
  worst, is_of_texts = Worst(), name.endswith("ForSequenceClassification")
  for number, case in enumerate(cases):
    ids, mask = reference[f"{number}/ids"], reference[f"{number}/mask"]
    inputs = _tokenized(tokenizer, case, ids, mask)
    with torch.no_grad():
      worst.add_hidden(model.eval()(**inputs).last_hidden_state, reference[f"{number}/hidden"], mask)
      if with_head is not None and f"{number}/logits" in reference:
        where = OF_TEXTS if is_of_texts else mask > 0
        worst.add_logits(_logits(with_head.eval()(**inputs)), reference[f"{number}/logits"], where)
    if is_of_texts and case["name"] in ("padded", "own rows"):
      worst.add_logits(_from_pipeline(folder, case["texts"]), reference[f"{number}/logits"], OF_TEXTS)
    if name.endswith("ForTokenClassification") and case["name"] == "own rows":
      worst.add_tags(_tags_from_pipeline(folder, case["texts"], ids, mask), reference[f"{number}/logits"])
  return worst


def _from_pipeline(folder: pathlib.Path, texts: list[list[str]]) -> torch.Tensor:
  """[texts, labels] logits as the ready-made pipeline gives them, put in the order of id2label.

  A text is one, or the two of a pair.
  """
  import transformers

  classify = transformers.pipeline("text-classification", model=str(folder), tokenizer=str(folder))
  label_of = json.loads((folder / "config.json").read_text())["id2label"]
  rows = []
  for text in texts:
    given = text[0] if len(text) == 1 else {"text": text[0], "text_pair": text[1]}
    answers = classify(given, top_k=None, function_to_apply="none")
    score = {answer["label"]: answer["score"] for answer in answers}
    rows.append([score[label_of[str(number)]] for number in range(len(label_of))])
  return torch.tensor(rows)


def _tags_from_pipeline(
  folder: pathlib.Path, texts: list[list[str]], ids: np.ndarray, mask: np.ndarray
) -> list[list[tuple[int, int, float]]]:
  """For each text (position, number of the label, its probability) of its tokens, special ones left out.

  The ready-made pipeline is given the words; the tokenizer must make our ids [texts, length] of them, too.
  """
  import transformers

  find = transformers.pipeline("token-classification", model=str(folder), tokenizer=str(folder))
  label_of = json.loads((folder / "config.json").read_text())["id2label"]
  number_of = {label: int(number) for number, label in label_of.items()}
  tagged = []
  for (text,), expected, is_token in zip(texts, ids, mask > 0):
    words = text.split(" ")
    actual = find.tokenizer(words, is_split_into_words=True)["input_ids"]
    if actual != expected[is_token].tolist():
      raise ValueError(f"the tokenizer gives other ids for the words {words[:5]}: {actual[:12]}")
    (tags,) = find([words], is_split_into_words=True, ignore_labels=[])
    tagged.append([(tag["index"], number_of[tag["entity"]], float(tag["score"])) for tag in tags])
  return tagged


def _tokenized(tokenizer, case: dict, ids: np.ndarray, mask: np.ndarray):
  """The tokenizer's own output for a plain string, a plain pair or a list of them; it must be our ids."""
  firsts = [text[0] for text in case["texts"]]
  seconds = [text[1] for text in case["texts"]] if len(case["texts"][0]) == 2 else None
  if len(firsts) == 1:
    arguments = (firsts[0],) if seconds is None else (firsts[0], seconds[0])
  else:
    arguments = (firsts,) if seconds is None else (firsts, seconds)
  inputs = tokenizer(*arguments, padding=True, truncation=True, return_tensors="pt")
  for what, actual, expected in (
    ("ids", inputs["input_ids"].numpy(), ids),
    ("attention mask", inputs["attention_mask"].numpy(), mask),
  ):
    if actual.shape != expected.shape or (actual != expected).any():
      where = "shape" if actual.shape != expected.shape else int(np.argmax((actual != expected).any(0)))
      raise ValueError(
        f"the tokenizer gives other {what} for {case['name']!r} at position {where}: "
        f"{actual[0][:12].tolist()}, expected {expected[0][:12].tolist()}"
      )
  return inputs


def _logits(output) -> torch.Tensor:
  if "start_logits" in output:
    return torch.stack([output.start_logits, output.end_logits], dim=-1)
  return output.prediction_logits if "prediction_logits" in output else output.logits


def read_encoder(folder: pathlib.Path, layout: str) -> torch_forward.Encoder:
  """The encoder of a folder that no installed class reads."""
  if layout == "fairseq":
    with torch.serialization.safe_globals([argparse.Namespace]):
      content = torch.load(folder / "model.pt", weights_only=True)
    return torch_forward.from_fairseq(content["model"], content["args"])
  config = json.loads((folder / "config.json").read_text())
  if layout == "torch":
    return torch_forward.from_own(load_file(folder / "model.safetensors"), config["model"])
  state = torch.load(folder / "pytorch_model.bin", weights_only=True)
  return torch_forward.from_hugging_face(state, config)


def check_plain(
  folder: pathlib.Path, layout: str, cases: list[dict], reference: dict[str, np.ndarray]
) -> Worst:
  """Through `torch_forward`, on ids."""
  encoder, worst = read_encoder(folder, layout), Worst()
  for number in range(len(cases)):
    ids, mask = (reference[f"{number}/{name}"] for name in ("ids", "mask"))
    with torch.no_grad():
      hidden = torch_forward.hidden_states(encoder, torch.from_numpy(ids), torch.from_numpy(mask))
    worst.add_hidden(hidden, reference[f"{number}/hidden"], mask)
  return worst


def main(arguments: list[str]) -> None:
  """Runs the check and prints {'hidden', 'logits'}."""
  folder, layout = pathlib.Path(arguments[0]), arguments[2]
  with np.load(arguments[1], allow_pickle=False) as file:
    reference = dict(file)
  cases = json.loads(reference.pop("cases").tobytes())
  if layout in layouts.PLAIN:
    worst = check_plain(folder, layout, cases, reference)
  else:
    worst = check_stock(folder, cases, reference)
  print(json.dumps({"hidden": worst.hidden, "logits": worst.logits}))


if __name__ == "__main__":
  main(sys.argv[1:])
