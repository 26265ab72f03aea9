"""Trims a vocabulary to the pieces that a text uses, as for one language of a multilingual encoder.

Special pieces, added tokens, bytes and single characters stay, so that any text still has ids. Kept pieces
keep their order and get the ids 0, 1, 2, ...; a text whose pieces were all kept is cut into the same pieces:

* WordPiece takes the longest piece that fits, which is kept.
* Unigram takes the path of the highest sum of scores, which are kept. The lowest score stays too, because the
  library derives from it how bad an unknown character is.
* BPE joins the pair of the lowest rank first. Kept are the pieces that a kept piece is made by, and the joins
  between kept pieces in their order, so that every join of the old path is still the first possible one.

The new `vocabulary.json` names the old vocabulary and the old id of each piece. So `pretrain.export import
--vocabulary=` and `train.init_from` take the rows of a model (`pretrain/checkpoints/warm_start.py`).
"""

import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from data import errors, files, vocabulary
from data.vocabulary import tokenizer_files, tokenizer_json

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # of a BPE or Unigram model that falls back to bytes


def trim(
  source: pathlib.Path, directory: pathlib.Path, used: np.ndarray, *, min_count: int, keep_at_least: int
) -> vocabulary.Vocabulary:
  """Writes the vocabulary in `source`, trimmed, into `directory`, or nothing; returns it.

  `used` has how often the text has each id: [size] int. Pieces used less than `min_count` times go; the most
  used of these, then those of the lowest ids, stay until there are `keep_at_least`.

  DataError: the vocabulary is a `sp.model`, or its file cannot be renumbered.
  """
  old = vocabulary.load(source)
  path = source / tokenizer_json.NAME
  if old.kind == "sentencepiece":
    raise errors.DataError(
      f"{source}: its pieces are in sp.model, which is not trimmed; expected a vocabulary of a "
      "tokenizer.json or vocab.txt, as `pretrain.export import` makes it from a folder with such a file"
    )
  content = tokenizer_json.read(path)[1] if path.is_file() else {}
  ids = _kept(old, content, used, min_count=min_count, keep_at_least=keep_at_least)
  special = None
  files.refuse_others(directory)
  with files.whole_directory(directory) as aside:
    if content:
      made = _renumbered(content, {old.piece(number): at for at, number in enumerate(ids)})
      text = json.dumps(made, indent=2, ensure_ascii=False)
      (aside / tokenizer_json.NAME).write_text(text, encoding="utf-8")
    if old.kind == vocabulary.TOKENIZER_JSON:
      special = {role: old.piece(getattr(old.special_ids, role)) for role in tokenizer_files.PIECES}
    else:
      lines = "".join(f"{old.piece(number)}\n" for number in ids)
      (aside / "vocab.txt").write_text(lines, encoding="utf-8")
    extends = vocabulary.Extension(old.digest, old.size, {at: (number,) for at, number in enumerate(ids)})
    made = vocabulary.write_description(
      aside, kind=old.kind, cased=old.cased, special=special, extends=extends
    )
    if [made.piece(at) for at in range(made.size)] != [old.piece(number) for number in ids]:
      raise errors.DataError(f"{path}: the library gives its pieces other ids than they have in the file")
  return made


def _kept(
  old: vocabulary.Vocabulary,
  content: Mapping[str, Any],
  used: np.ndarray,
  *,
  min_count: int,
  keep_at_least: int,
) -> list[int]:
  """Returns the old ids that stay, ascending; arguments as for `trim`."""
  model = content.get("model", {})
  always = {token["id"] for token in content.get("added_tokens", [])} | set(vars(old.special_ids).values())
  if "unk_id" in model:  # Unigram: [piece, score] pairs
    always.add(min(range(len(model["vocab"])), key=lambda number: model["vocab"][number][1]))
  for number in range(old.size):
    piece, letters = old.piece(number), old.letters(number)[0]
    if min(len(piece.removeprefix(old.mark)), len(letters)) <= 1 or _BYTE.fullmatch(piece):
      always.add(number)
  named = [number for number in range(old.size) if old.piece(number)]  # an id without a piece goes
  by_use = sorted(named, key=lambda number: (-used[number], number))
  makers = _makers(model)
  ids = {old.piece(number): number for number in named}
  kept: set[int] = set()

  def keep(numbers: Iterable[int]) -> None:
    for number in numbers:
      kept.add(number)
      kept.update(ids[piece] for piece in makers(old.piece(number)))

  keep(sorted(always.intersection(named)))
  keep(number for number in by_use if used[number] >= min_count)
  for number in by_use:
    if len(kept) >= keep_at_least:
      break
    keep([number])
  return sorted(kept)


def _makers(model: Mapping[str, Any]):
  """Returns a function from a piece to the pieces between its characters and itself; () but for BPE."""
  if "merges" not in model:
    return lambda piece: ()
  ranks = {pair: rank for rank, pair in enumerate(map(_pair, model["merges"]))}

  def makers(piece: str) -> list[str]:
    parts, made = list(piece), list(piece)
    while len(parts) > 1:
      rank, at = min((ranks.get(pair, len(ranks)), at) for at, pair in enumerate(itertools.pairwise(parts)))
      if rank == len(ranks):
        return []  # a word that was added whole (`ignore_merges`)
      parts[at : at + 2] = [parts[at] + parts[at + 1]]
      made.append(parts[at])
    return [part for part in made if part in model["vocab"]]

  return makers


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
  """Returns the two pieces of a merge: older files have 'a b', newer ones ['a', 'b']."""
  first, second = merge.split(" ") if isinstance(merge, str) else merge
  return first, second


def _renumbered(content: dict[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
  """Returns the content of a tokenizer.json with these pieces alone."""
  model = content["model"]
  if "unk_id" in model:
    names = [piece for piece, _ in model["vocab"]]
    kept = sorted((entry for entry in model["vocab"] if entry[0] in ids), key=lambda entry: ids[entry[0]])
    unknown = model["unk_id"]
    model = model | {"vocab": kept, "unk_id": None if unknown is None else ids[names[unknown]]}
  else:
    model = model | {"vocab": {piece: ids[piece] for piece in model["vocab"] if piece in ids}}
  if "merges" in model:
    merges = [merge for merge in model["merges"] if {*_pair(merge), "".join(_pair(merge))} <= ids.keys()]
    model = model | {"merges": merges}
  added = [token | {"id": ids[token["content"]]} for token in content["added_tokens"]]
  padding = content.get("padding")
  return content | {
    "model": model,
    "added_tokens": sorted(added, key=lambda token: token["id"]),
    "post_processor": _with_ids(content.get("post_processor"), ids),
    "padding": padding and padding | {"pad_id": ids[padding["pad_token"]]},
  }


def _with_ids(step: Any, ids: Mapping[str, int]) -> Any:
  """Returns a post-processor with the new ids of its special pieces; other steps as they are."""
  if not isinstance(step, dict):
    return step
  made = dict(step)
  if step["type"] == "Sequence":
    made["processors"] = [_with_ids(one, ids) for one in step["processors"]]
  for name in {"cls", "sep"} & step.keys():  # of RobertaProcessing and BertProcessing: [piece, id]
    made[name] = [step[name][0], ids[step[name][0]]]
  if "special_tokens" in step:  # of TemplateProcessing
    made["special_tokens"] = {
      name: token | {"ids": [ids[piece] for piece in token["tokens"]]}
      for name, token in step["special_tokens"].items()
    }
  return made
