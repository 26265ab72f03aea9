"""Reads a BEIR folder: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, each also `.gz`. No jax.

Format and rules are those of beir's GenericDataLoader.
"""

import dataclasses
import pathlib
import re

from data import rows
from data.errors import DataError, listed
from data.rows import Row
from data.rows.read import no_row

_ID = "_id"
_FILES = "expected a BEIR folder, with corpus.jsonl, queries.jsonl and qrels/test.tsv"
_QRELS = "query-id, corpus-id, score"


@dataclasses.dataclass(frozen=True)
class Beir:
  """The queries and judgements of a split; the corpus stays in its file, only its ids are in memory."""

  corpus: str  # path of the file of passages
  ids: list[str]  # of the passages, in the file's order
  queries: dict[str, str]  # id -> text, of the queries with a judgement
  qrels: dict[str, dict[str, int]]  # query -> passage -> relevance, in the order of `queries`
  unjudged: int  # queries of the file without a judgement in this split, which are skipped
  lost_queries: int = 0  # judgements of a query that the folder lacks, which are skipped
  lost_passages: int = 0  # judgements of a passage that the folder lacks, which no system can find

  @property
  def irrelevant(self) -> int:
    """Number of queries whose judged passages are all irrelevant; their scores are 0."""
    return sum(max(judged.values()) <= 0 for judged in self.qrels.values())


def passage(row: Row) -> str:
  """Returns the text of a passage: title and text, joined with a space."""
  title = row.text("title") if row.fields.get("title") is not None else ""
  return f"{title} {row.text('text')}".strip()


def read(folder: str, split: str) -> Beir:
  """Reads and checks all files of a split.

  Raises:
    DataError: a file is missing, empty or damaged; an _id occurs twice; no judgement names a query of the
      folder, or a score is no whole number. The message names file and row.
  """
  corpus, queries = (_file(folder, f"{name}.jsonl", _FILES) for name in ("corpus", "queries"))
  splits = f"its splits are {listed(_splits(folder)) or 'none'}; choose one with\n  --split=NAME"
  judgements = _file(folder, f"qrels/{split}.tsv", splits)
  ids = _texts(corpus, passage, keep=False)
  texts = _texts(queries, lambda row: row.text("text"), keep=True)
  qrels = _qrels(judgements)
  kept = {query: text for query, text in texts.items() if query in qrels}
  if not kept:
    raise DataError(f"{judgements}: none of its queries is in {queries}; give the files of one data set")
  in_order = {query: qrels[query] for query in kept}
  lost_queries = sum(len(of_query) for query, of_query in qrels.items() if query not in kept)
  lost_passages = sum(document not in ids for of_query in in_order.values() for document in of_query)
  return Beir(corpus, list(ids), kept, in_order, len(texts) - len(kept), lost_queries, lost_passages)


def _splits(folder: str) -> list[str]:
  found = pathlib.Path(folder, "qrels").glob("*.tsv*")
  return sorted({path.name.partition(".tsv")[0] for path in found})


def _file(folder: str, name: str, advice: str) -> str:
  for path in (pathlib.Path(folder, name), pathlib.Path(folder, f"{name}.gz")):
    if path.is_file():
      return str(path)
  raise DataError(f"{folder}: no {name} or {name}.gz; {advice}")


def _texts(path: str, text_of, *, keep: bool) -> dict[str, str]:
  """Returns {id: text} of a file, in order; without `keep` texts are only checked and are ''."""
  texts: dict[str, str] = {}
  for row in rows.read(path):
    name = row.value(_ID)
    if not isinstance(name, str | int) or isinstance(name, bool):
      row.refuse(f"{_ID!r} is a {type(name).__name__}; expected text")
    if str(name) in texts:
      row.refuse(f"the {_ID} {name!r} occurs twice; remove one of the rows")
    text = text_of(row)
    texts[str(name)] = text if keep else ""
  if not texts:
    raise no_row(path)
  return texts


def _qrels(path: str) -> dict[str, dict[str, int]]:
  names, qrels = rows.columns(path), {}
  if len(names) != 3 or names[2].lstrip("-").isdigit():
    raise DataError(f"{path}: the first line is {listed(names)}; expected the header {_QRELS}, tab-separated")
  for row in rows.read(path):
    query, document, score = (row.fields[name] for name in names)
    if not re.fullmatch(r"-?\d{1,9}", score.strip()):  # trec_eval's numbers are 32 bits wide
      row.refuse(f"the score is {score!r}; expected a whole number, 0 for an irrelevant passage")
    known = qrels.setdefault(query, {}).setdefault(document, int(score))
    if known != int(score):
      row.refuse(f"{document!r} has the score {score} for {query!r}, and {known} in a row before; remove one")
  if not qrels:
    raise no_row(path)
  return qrels
