"""A sentencepiece BPE model as a BPE model of the `tokenizers` library: the same merges in the same order."""

from collections.abc import Mapping

from data.errors import DataError, reason

_BPE = 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # ModelProto.SentencePiece.Type


def read_proto(path):
  """Returns the `ModelProto` of a sentencepiece file; DataError if it is no such file."""
  from google.protobuf.message import DecodeError
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue] (made by protobuf)
  try:
    proto.ParseFromString(path.read_bytes())
  except (OSError, DecodeError) as error:
    raise DataError(
      f"{path}: not a sentencepiece model ({reason(error)}); bring back the original file"
    ) from error
  return proto


def bpe_model(proto, ids: Mapping[str, int], *, vocabulary: Mapping[str, int], unknown: str, where: str):
  """Returns the `tokenizers.models.BPE` that splits as the sentencepiece model does.

  Sentencepiece joins whatever neighbours make the best piece; the library has a list of pairs, each with its
  rank. One pair for each piece is enough: while the characters of a piece become that piece, all that is
  joined lies inside it, and what is joined inside depends on nothing outside. So a piece is made of the two
  parts into which its own text is joined last, or never.

  `ids` is {piece: id} for what text may give, `vocabulary` has the special ones too, `where` is for errors.
  DataError: the model is not BPE, or has what the library's BPE has not, or `ids` lacks pieces of it.
  """
  from tokenizers import models

  scores = _scores(proto, where)
  has_bytes = proto.trainer_spec.byte_fallback
  produced = [*scores, *(piece.piece for piece in proto.pieces if has_bytes and piece.type == _BYTE)]
  missing = [piece for piece in produced if piece not in ids]
  if missing:
    raise DataError(
      f"{where}: {len(missing)} pieces of the model have no id of their own (such as {missing[0]!r}), and "
      "tokenizer.json cannot give one id to several pieces; use a layout that keeps sp.model and dict.txt"
    )
  merges = [_last_join(piece, scores) for piece in sorted(scores, key=scores.__getitem__, reverse=True)]
  return models.BPE(
    dict(vocabulary),
    [pair for pair in merges if pair],
    unk_token=unknown,
    fuse_unk=True,
    byte_fallback=has_bytes,
  )


def _scores(proto, where: str) -> dict[str, float]:
  """{piece: score} of the pieces that text is joined to."""
  if proto.trainer_spec.model_type != _BPE:
    raise DataError(f"{where}: not a BPE model of sentencepiece; expected model_type BPE")
  for piece in proto.pieces:
    if piece.type not in (_NORMAL, _UNKNOWN, _CONTROL, _BYTE):
      raise DataError(f"{where}: the piece {piece.piece!r} is of a type that tokenizer.json cannot follow")
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
  long = {piece: score for piece, score in scores.items() if len(piece) > 1}
  if len(set(long.values())) < len(long):
    raise DataError(f"{where}: two pieces have the same score; tokenizer.json needs an order of all pieces")
  return scores


def _last_join(piece: str, scores: Mapping[str, float]) -> tuple[str, str] | None:
  """Returns the two parts that are joined last where `piece` is a text of its own; None if it never is."""
  pieces = list(piece)
  while len(pieces) > 2:
    pairs = [scores.get(pieces[i] + pieces[i + 1]) for i in range(len(pieces) - 1)]
    best = max((score for score in pairs if score is not None), default=None)
    if best is None:
      return None
    i = pairs.index(best)  # the leftmost of equals
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
  return (pieces[0], pieces[1]) if len(pieces) == 2 else None
