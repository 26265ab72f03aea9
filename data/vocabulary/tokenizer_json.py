"""Opens a `tokenizer.json` of the `tokenizers` library as a vocabulary; the file is carried byte for byte.

Its ids are those of `encode(text, add_special_tokens=False)`, also of tokens that a user added, `[E1]`. Text
that spells a special piece or a spare slot, `[unused0]`, is read as text. In the library itself such text may
give the id of the spare slot.
"""

import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from data import errors
from data.vocabulary import tokenizer_files

NAME = "tokenizer.json"
SPM = "spm.model"  # DeBERTa's SentencePiece model, kept beside it for exports; nothing reads it
SPARE = tokenizer_files.SPARE
BYTE_MARK = "Ġ"  # the space of byte-level pieces
MODELS = ("BPE", "WordPiece", "Unigram")
_RESERVED = re.compile(r"reserved|padding")  # of added tokens that no text should give
_ROLES_OF_OTHERS = {"bos": "cls", "eos": "sep"}  # of decoders' tokenizers, where ours has no piece
_ADVICE = "a tokenizer.json is carried as it is, or not at all"


class OpenedTokenizer(NamedTuple):
  """The parts of an opened tokenizer.json that a vocabulary uses."""

  pieces: list[str]  # by id, as in the file; '' where an id has no piece
  encode_batch: Callable[[Sequence[str]], list[list[int]]]
  join: Callable[[list[str]], str]
  is_cased: bool
  mark: str  # '##' before a piece that continues a word; 'Ġ' or '▁' before one that begins a word
  show: Callable[[str], str]  # the text of a piece without its mark
  between: tuple[int, ...]  # ids between two texts


def special_pieces(path: pathlib.Path, tokenizer: Any, content: Mapping[str, Any]) -> dict[str, str]:
  """Returns {'cls': '[CLS]', ...} as config files beside `path` name them, else as the tokenizer uses them.

  `tokenizer` and `content` are those of `read`. The tokenizer writes cls and sep around a text, and its model
  has unk. Pieces without a role have BERT's or fairseq's names. Decoders' tokenizers, such as EuroBERT's,
  have no unk and pad with sep. There reserved tokens take these roles: no token that is attended to has them.
  DataError: a piece is missing, or one piece has two roles.
  """
  known = set(pieces_of(tokenizer))
  named = tokenizer_files.special_names(path.parent, (*tokenizer_files.PIECES, *_ROLES_OF_OTHERS))
  for other, role in _ROLES_OF_OTHERS.items():
    if other in named:
      named.setdefault(role, named[other])
  used, special, tried = _roles(tokenizer, content), {}, {}
  for role, official in tokenizer_files.PIECES.items():
    names = [official, *(alias for alias, name in tokenizer_files.ALIASES.items() if name == official)]
    tried[role] = [named[role]] if role in named else [*used.get(role, ()), *names]
    special[role] = next((name for name in tried[role] if name in known), "")
  taken, added = {*named.values(), *special.values()}, [token["content"] for token in content["added_tokens"]]
  free = [name for name in added if _RESERVED.search(name) and name not in taken]
  for role in ("pad", "unk"):
    if free and special[role] in ("", special["cls"], special["sep"]):
      special[role] = free.pop(0)
  for role, piece in special.items():
    if not piece:
      raise errors.DataError(
        f"{path}: no special piece {' or '.join(tried[role])}; every vocabulary needs it; name another in\n"
        f'  {path.with_name("tokenizer_config.json")}: "{role}_token"'
      )
  if len(set(special.values())) < len(special):
    raise errors.DataError(f"{path}: the special pieces are {special}; expected five different ones")
  return special


def _roles(tokenizer: Any, content: Mapping[str, Any]) -> dict[str, list[str]]:
  """Returns the pieces that a `tokenizers.Tokenizer` itself uses as 'cls', 'sep', 'unk' and 'pad'."""
  padding = tokenizer.padding
  tokenizer.no_padding()
  plain = tokenizer.encode("a", add_special_tokens=False).tokens
  around = [token for token in tokenizer.encode("a").tokens if token not in plain]
  roles = {"cls": around[:1], "sep": around[-1:]} if len(around) == 2 else {}
  model = content["model"]
  unk = model["vocab"][at][0] if (at := model.get("unk_id")) is not None else model.get("unk_token")
  roles["unk"] = [unk] if unk else []
  return roles | ({"pad": [padding["pad_token"]]} if padding else {})


def read(path: pathlib.Path) -> tuple[Any, dict[str, Any]]:
  """Returns the `tokenizers.Tokenizer` of a file, and its JSON content; DataError if it is unreadable."""
  # There is one process per core already; more threads would only compete.
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  from tokenizers import Tokenizer

  content = tokenizer_files.read_bytes(path)
  try:
    tokenizer, described = Tokenizer.from_buffer(content), json.loads(content)
  except Exception as error:  # the library raises bare Exceptions
    raise errors.DataError(
      f"{path}: not a readable tokenizer ({errors.reason(error)[:80]}); restore the original file"
    ) from error
  most = tokenizer_files.MAX_PIECES
  if (largest := max(tokenizer.get_vocab().values(), default=0)) >= most:  # lists by id would fill the memory
    raise errors.DataError(f"{path}: it has the id {largest:,}, expected ids below {most:,}; {_ADVICE}")
  return tokenizer, described


def model_of(tokenizer: Any) -> str:
  """Returns the name of the model of a `tokenizers.Tokenizer`, such as 'BPE'."""
  return type(tokenizer.model).__name__


def pieces_of(tokenizer: Any) -> list[str]:
  """Returns the pieces of a `tokenizers.Tokenizer` by id; '' where an id has no piece."""
  by_id = {number: piece for piece, number in tokenizer.get_vocab().items()}
  return [by_id.get(number, "") for number in range(max(by_id, default=-1) + 1)]


def open_file(path: pathlib.Path, special: Mapping[str, str]) -> OpenedTokenizer:
  """Opens a file whose special pieces are {'cls': '[CLS]', ...}.

  Its truncation and padding are those of its last call, as its library stores them; they are not used.

  DataError: it is unreadable, has another model than `MODELS`, or writes other inputs than `[CLS] A [SEP]`
  and `[CLS] A [SEP] B [SEP]`, with one or two special pieces between the texts.
  """
  tokenizer, content = read(path)
  tokenizer.no_truncation()
  tokenizer.no_padding()
  content |= {"truncation": None, "padding": None}
  model = content["model"]
  kind = model_of(tokenizer)
  if kind not in MODELS or model.get("end_of_word_suffix"):
    kind += " with end_of_word_suffix" * (kind in MODELS)
    raise errors.DataError(f"{path}: its model is {kind}; expected {', '.join(MODELS)}; {_ADVICE}")
  pieces = pieces_of(tokenizer)
  ids = {role: tokenizer_files.special_id(path, pieces, piece) for role, piece in special.items()}
  between = _between(path, tokenizer, ids)
  encode_batch = _encoder(tokenizer, content, special, ids)
  is_bytes = _is_byte_level(content)
  mark = (
    model.get("continuing_subword_prefix", "##") if kind == "WordPiece" else BYTE_MARK if is_bytes else "▁"
  )
  normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
  return OpenedTokenizer(
    pieces,
    encode_batch,
    tokenizer.decoder.decode if tokenizer.decoder else " ".join,
    normalize("A") == "A",
    mark,
    _show_bytes if is_bytes else str,
    between,
  )


def _is_byte_level(content: Mapping[str, Any]) -> bool:
  """Returns whether a tokenizer.json splits text into byte-level pieces; its steps may be in sequences."""
  parts = [content.get("pre_tokenizer"), content.get("decoder")]
  return '"type": "ByteLevel"' in json.dumps(parts)


def _show_bytes(piece: str) -> str:
  """Returns the text of a byte-level piece; '\ufffd' in place of a part of a character."""
  from tokenizers import decoders

  return decoders.ByteLevel().decode([piece])


def _between(path: pathlib.Path, tokenizer: Any, ids: Mapping[str, int]) -> tuple[int, ...]:
  """Returns the ids that the tokenizer writes between two texts; DataError for another form of inputs."""
  plain = tokenizer.encode("a", add_special_tokens=False).ids
  cls, sep = ids["cls"], ids["sep"]
  first, last = [cls, *plain], [*plain, sep]
  pair = tokenizer.encode("a", "a").ids
  between = tuple(pair[len(first) : len(pair) - len(last)])
  known = between if 1 <= len(between) <= 2 and {cls, sep}.issuperset(between) else (sep,)
  shown = " ".join("[CLS]" if i == cls else "[SEP]" for i in known)
  for texts, expected, form in (
    (["a"], [*first, sep], "[CLS] a [SEP]"),
    (["a", "a"], [*first, *known, *last], f"[CLS] a {shown} a [SEP]"),
  ):
    encoding = tokenizer.encode(*texts)
    if encoding.ids != expected:
      written = f"{' '.join(encoding.tokens)[:60]!r} {encoding.ids[:9]}"
      raise errors.DataError(f"{path}: its input is {written}; expected {form!r} {expected}; {_ADVICE}")
  return between


def own_tokens(content: Mapping[str, Any], special: Mapping[str, str]) -> list[str]:
  """Returns the added tokens of a tokenizer.json that text may give: those of its user."""
  names = tokenizer_files.own_names(token["content"] for token in content["added_tokens"])
  return [name for name in names if name not in special.values()]


def _encoder(
  tokenizer: Any, content: Mapping[str, Any], special: Mapping[str, str], ids: Mapping[str, int]
) -> Callable[[Sequence[str]], list[list[int]]]:
  """Returns a function from texts to ids that gives no special id but [UNK], and no spare slot."""
  from tokenizers import AddedToken, Tokenizer

  # Only in memory: the library reads an added token as text if it is special.
  own = own_tokens(content, special)
  added = [
    token | {"special": False} if token["content"] in own else token for token in content["added_tokens"]
  ]
  if added != content["added_tokens"]:
    tokenizer = Tokenizer.from_str(json.dumps({**content, "added_tokens": added}))
  kept = [*special.values(), *(token["content"] for token in added)]
  silent = [name for name in dict.fromkeys(kept) if name not in own]
  tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in silent])
  tokenizer.encode_special_tokens = True

  def encode_batch(texts: Sequence[str]) -> list[list[int]]:
    return [one.ids for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

  never, unk = {ids[role] for role in ids if role != "unk"}, ids["unk"]
  probes = encode_batch([text for name in silent[:5] for text in (name, f" {name}", f"a{name} a")])
  if never.isdisjoint(itertools.chain(*probes)):
    return encode_batch
  # A model of which a special name is an ordinary piece, such as Unigram.
  return lambda texts: [[unk if i in never else i for i in encoded] for encoded in encode_batch(texts)]
