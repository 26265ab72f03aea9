"""Retrieval on a BEIR folder: reads it, searches it by BM25, and scores results with trec_eval's code.

A folder has `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, each also `.gz`; format and rules are
those of beir's GenericDataLoader. BM25 is the baseline beside every figure.
"""

import dataclasses
import logging
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

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


NOTE = "BM25 is bm25s' (lucene, k1=1.5, b=0.75; words in lower case without English stop words, unstemmed)."


def search(passages: Iterable[str], queries: Sequence[str], most: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns scores [queries, most] float32, largest first, and numbers of passages; -inf: no common word.

  `most` is at most the number of passages.
  """
  import bm25s  # here: it starts JAX's devices

  logging.getLogger("bm25s").setLevel(logging.WARNING)
  tokenizer, no_empty = bm25s.tokenization.Tokenizer(stopwords="en"), {"allow_empty": False}
  texts: Any = passages  # the annotation of bm25s is a list, but a list of all texts would fill the memory
  # Arrays take an eighth of the memory of lists.
  ids = [np.asarray(words, np.int32) for words in tokenizer.streaming_tokenize(texts, **no_empty)]
  words = list(tokenizer.streaming_tokenize(list(queries), update_vocab=False, **no_empty))
  scores, numbers = np.full((len(words), most), -np.inf, np.float32), np.zeros((len(words), most), np.int64)
  asked = [row for row, of_query in enumerate(words) if of_query]
  if asked:
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
    index.index((ids, tokenizer.get_vocab_dict()), create_empty_token=False, show_progress=False)
    shown = {"backend_selection": "numpy", "show_progress": False}
    numbers[asked], scores[asked] = index.retrieve([words[row] for row in asked], k=most, **shown)
  return np.where(scores > 0, scores, -np.inf), numbers


# Names in reports -> pytrec_eval's; the first decides. MRR@10 is made of the rank of the first relevant one.
METRICS = {
  "nDCG@10": "ndcg_cut_10",
  "MRR@10": "recip_rank",
  "recall@10": "recall_10",
  "recall@100": "recall_100",
  "MAP@100": "map_cut_100",
}
MOST = 100  # passages that are scored of each query


def depth(data: Beir) -> int:
  """Returns the number of passages to search: one more than are scored, since a query's own is ignored."""
  return min(MOST + 1, len(data.ids))


def with_copies(
  similarities: np.ndarray, numbers: np.ndarray, number_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns results [queries, depth] among all passages from those among the different ones.

  `number_of` [passages] is the number of each passage's text among the different ones.
  """
  copies = np.bincount(number_of)
  members = np.split(np.argsort(number_of, kind="stable"), np.cumsum(copies)[:-1])
  depth, made = numbers.shape[1], []
  for values, found in zip(similarities, numbers):
    passages = np.concatenate([members[number] for number in found])
    made.append((np.repeat(values, copies[found])[:depth], passages[:depth]))
  return np.stack([values for values, _ in made]), np.stack([passages for _, passages in made])


def scores(data: Beir, similarities: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
  """Returns {metric: [queries] float64} for results of `depth(data)` passages, largest similarity first.

  A similarity of -inf is no result. As in BEIR, a passage with the id of the query is ignored.
  """
  run = {}
  for query, values, found in zip(data.queries, similarities.tolist(), numbers.tolist()):
    results = {data.ids[number]: value for value, number in zip(values, found) if value > -np.inf}
    results.pop(query, None)
    run[query] = dict(list(results.items())[:MOST])
  import pytrec_eval  # here: of the extra `embeddings`

  measures = {"ndcg_cut.10", "recip_rank", "recall.10,100", "map_cut.100"}
  by_query = pytrec_eval.RelevanceEvaluator(data.qrels, measures).evaluate(run)
  made = {
    name: np.asarray([by_query[query][measure] for query in data.queries])
    for name, measure in METRICS.items()
  }
  made["MRR@10"] = np.where(made["MRR@10"] > 1 / 10.5, made["MRR@10"], 0.0)
  return made


def difference(ours: np.ndarray, others: np.ndarray) -> tuple[float, float | None]:
  """Returns the mean of `ours - others` [queries], and the half width of its 95 % interval.

  The half width is 1.96 standard errors of the paired differences; None for a single query.
  """
  paired = ours - others
  width = 1.96 * float(paired.std(ddof=1)) / len(paired) ** 0.5 if len(paired) > 1 else None
  return float(paired.mean()), width
