"""Converts a sentencepiece BPE model to a BPE model of the `tokenizers` library, with the same merges."""

from collections.abc import Mapping

from data.errors import DataError, reason

_BPE = 2  # TrainerSpec.ModelType
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # ModelProto.SentencePiece.Type


def read_proto(path):
  """Reads the `ModelProto` of a sentencepiece file; raises DataError if it is none."""
  from google.protobuf.message import DecodeError
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue] (made by protobuf)
  try:
    proto.ParseFromString(path.read_bytes())
  except (OSError, DecodeError) as error:
    raise DataError(
      f"{path}: not a sentencepiece model ({reason(error)}); restore the original file"
    ) from error
  return proto


def bpe_model(proto, ids: Mapping[str, int], *, vocabulary: Mapping[str, int], unknown: str, where: str):
  """Returns a `tokenizers.models.BPE` that splits text as the sentencepiece model does.

  Sentencepiece merges the neighbours that make the best piece; the library has a ranked list of pairs. One
  pair for each piece is enough: while the characters of a piece are merged into it, all merges happen inside
  it and do not depend on the text around it. So a piece is always made of the two parts that are merged last
  when it is a text of its own.

  `ids` is {piece: id} for pieces of text, `vocabulary` also has special pieces, `where` names the file in
  errors. DataError: the model is not BPE or has unsupported features, or `ids` lacks some of its pieces.
  """
  from tokenizers import models

  scores = _scores(proto, where)
  has_bytes = proto.trainer_spec.byte_fallback
  produced = [*scores, *(piece.piece for piece in proto.pieces if has_bytes and piece.type == _BYTE)]
  missing = [piece for piece in produced if piece not in ids]
  if missing:
    raise DataError(
      f"{where}: pieces without an id of their own: {len(missing)} (such as {missing[0]!r}); tokenizer.json "
      "cannot give one id to several pieces; use a layout that keeps sp.model and dict.txt"
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
  """Returns {piece: score} of a sentencepiece BPE model, without special and byte pieces."""
  if proto.trainer_spec.model_type != _BPE:
    raise DataError(f"{where}: not a BPE model; expected a sentencepiece model with model_type BPE")
  for piece in proto.pieces:
    if piece.type not in (_NORMAL, _UNKNOWN, _CONTROL, _BYTE):
      raise DataError(f"{where}: the piece {piece.piece!r} has a type that tokenizer.json does not support")
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
  long = {piece: score for piece, score in scores.items() if len(piece) > 1}
  if len(set(long.values())) < len(long):
    raise DataError(f"{where}: two pieces have the same score; tokenizer.json needs different scores")
  return scores


def _last_join(piece: str, scores: Mapping[str, float]) -> tuple[str, str] | None:
  """Returns the two parts that are merged last when `piece` is the whole text; None if it is never made."""
  pieces = list(piece)
  while len(pieces) > 2:
    pairs = [scores.get(pieces[i] + pieces[i + 1]) for i in range(len(pieces) - 1)]
    best = max((score for score in pairs if score is not None), default=None)
    if best is None:
      return None
    i = pairs.index(best)  # the leftmost of equals
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
  return (pieces[0], pieces[1]) if len(pieces) == 2 else None
