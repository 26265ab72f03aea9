"""Builds an index of texts and searches in it: `python -m pretrain.search --checkpoint=DIR --index=DIR`.

`--help` lists the flags and the exit codes.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from data import command, errors, files, output_files
from data.command import FETCHED, Parser
from data.errors import ConfigError, DataError, changes, counted
from data.rows import Row
from pretrain.command import keep_temporaries
from pretrain.embed import texts
from pretrain.embed.schema import EmbeddingSchema
from pretrain.embed.texts import VECTOR, Texts
from pretrain.search import build, index
from pretrain.search.index import SearchIndex

logger = logging.getLogger(__name__)

ANSWERS = "answers"  # of a query: JSON objects, the nearest first
_SAMPLE, _TOP_OF_RECALL = 200, 10  # rows and neighbours with which a graph is compared with exact search
_EPILOG = """\
Build an index once, then search in it as often as you like:

  python -m pretrain.search --checkpoint=runs/embedding/model --input=shop.csv --column=review \\
      --index=shop.index
  python -m pretrain.search --checkpoint=runs/embedding/model --index=shop.index --query='it broke at once'
  python -m pretrain.search --checkpoint=runs/embedding/model --index=shop.index --queries=queries.txt \\
      --output=answers.jsonl

The score is the cosine. Texts and queries get the prefixes and lengths of the embedding model. --kind=flat
compares a query with every row; hnsw follows a graph: faster for millions of rows, and it may miss some. An
index and an output appear when they are complete; a killed command begins again. Existing ones are never
overwritten.

Exit codes: 0 finished; 2 flags; 3 data, index, vocabulary or checkpoint; 5 storage; 75 stopped on request,
the same command begins again.
"""


class _Answers(output_files.JsonLines):
  """JSON lines with one object for each answer of a query."""

  def write(self, rows: output_files.Rows) -> None:
    super().write([answer for row in rows for answer in row[ANSWERS]])


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m pretrain.search",
    description="Finds the texts whose vectors are nearest to that of a query.",
    epilog=_EPILOG,
  )
  texts.add_flags(made)
  made.add_argument("--index", required=True, help="folder of the index")
  made.add_argument(
    "--input",
    default="",
    bucket=FETCHED,
    help="build the index of these texts: lines, or a column of CSV, TSV, JSONL or Parquet (.gz, .zst too)",
  )
  made.add_argument("--query", default="", help="print the texts nearest to this one")
  made.add_argument(
    "--queries",
    default="",
    bucket=FETCHED,
    help="answer each text of a file (column: --column) in JSON lines; - is standard input",
  )
  made.add_argument(
    "--vectors",
    default="",
    bucket=FETCHED,
    help="build with the vectors of --input that pretrain.embed wrote, .npy or .parquet",
  )
  made.add_argument("--kind", default="flat", choices=index.KINDS, help="of a new index")
  made.add_argument("--hnsw_links", type=int, default=32, help="links of a vector in the graph (M)")
  made.add_argument(
    "--ef_construction", type=int, default=100, help="candidates of a search while the graph is built"
  )
  made.add_argument(
    "--ef_search",
    type=int,
    default=128,
    help="candidates of a query in the graph: more miss less, but slower",
  )
  made.add_argument("--top", type=int, default=10, help="number of texts for each query")
  made.add_argument("--output", default="", help="answers.jsonl of --queries; default: standard output")
  # An index has unit vectors, in the schema of the embedding model.
  made.set_defaults(unit=True, pooling=None, max_length=0, side="passage")
  return made


def _check(asked: argparse.Namespace) -> None:
  command.refuse_below_one(asked, "batch_size", "top", "ef_construction", "ef_search")
  if asked.hnsw_links < 2:
    raise ConfigError(f"--hnsw_links={asked.hnsw_links}: expected at least 2")
  if sum(map(bool, (asked.input, asked.query, asked.queries))) != 1:
    raise ConfigError(
      "expected one of --input, which builds an index, --query and --queries\n"
      "  --input=FILE\n  --query=TEXT\n  --queries=FILE"
    )
  if asked.input == "-":
    raise ConfigError("--input=-: an index is built from a file that can be read twice; expected a path")
  if asked.index and pathlib.Path(asked.index).absolute() == pathlib.Path.cwd():
    raise ConfigError(f"--index={asked.index} is the current folder; name one in it\n  --index=NAME")
  if asked.vectors and not asked.input:
    raise ConfigError("--vectors builds an index and needs the texts of the vectors; add\n  --input=FILE")
  if asked.output and not asked.queries:
    raise ConfigError("--output is for the answers of --queries; leave it out")


def _build(asked: argparse.Namespace) -> None:
  """Writes the index of --input, unless it exists."""
  path = pathlib.Path(asked.index)
  if (path / index.FILE).is_file():
    known = SearchIndex.read(path)
  else:
    files.refuse_others(path, flag="--index")
    known = None
  graph = None
  if asked.kind == "hnsw":
    index.faiss()
    graph = build.GraphSettings(asked.hnsw_links, asked.ef_construction)
  indexed = Texts.read(asked.input, asked.column)
  embedder = texts.open_embedder(asked)
  meta = {"model": embedder.digest, "schema": _plain(embedder.schema), "size": embedder.width}
  meta |= {"column": indexed.column, "dtype": asked.dtype, "kind": asked.kind}
  meta |= {"graph": graph and dataclasses.asdict(graph)}
  if known is not None:
    _refuse_other(known, meta, asked.input)
    logger.info(f"{path} is complete: {counted(known.meta['rows'], 'row')} indexed before")
    return
  with _vectors(asked, indexed, embedder) as stored:
    speed = build.write(path, asked.input, stored, asked.dtype, graph, meta)
  made = SearchIndex.read(path)
  recall = ""
  if graph is not None:
    found = made.recall(sample=_SAMPLE, top=_TOP_OF_RECALL, ef_search=asked.ef_search)
    recall = (
      f", recall@{_TOP_OF_RECALL} of the graph {found:.3f} with its rows as queries; other texts find fewer"
    )
  what = f"{counted(stored.count, 'row')} of {stored.width} numbers, {asked.dtype}, {speed:,.0f} rows/s"
  logger.info(f"{path}: {what}{recall}")


def _refuse_other(known: SearchIndex, meta: dict[str, Any], source: str) -> None:
  sha256 = build.described_input(source)["sha256"]
  before = known.meta | {"input": known.meta["input"]["sha256"][:12], "model": known.meta["model"][:12]}
  after = meta | {"input": sha256[:12], "model": meta["model"][:12]}
  changed = list(changes({name: before[name] for name in after}, after, show=json.dumps).values())
  if changed:
    raise ConfigError(
      f"--index={known.path} was built otherwise ({changed[0][:60]}); name another folder, or "
      f"{index.again(known.path, {**meta, 'input': {'path': source}})}"
    )


@contextlib.contextmanager
def _vectors(asked: argparse.Namespace, indexed: Texts, embedder: Any) -> Iterator[build.StoredVectors]:
  """Yields the vectors of --vectors, or computes them in a temporary file beside the index."""
  if asked.vectors:
    stored = build.StoredVectors(pathlib.Path(asked.vectors))
    build.check(stored, indexed, embedder)
    yield stored
    return
  from pretrain.inference import stream

  beside = pathlib.Path(asked.index).absolute().parent
  with errors.writing(f"--index={asked.index}"):
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".search-", dir=beside) as folder:
      path = pathlib.Path(folder) / index.VECTORS
      prepare, compute = texts.answering(indexed, embedder, asked.side)
      sizes = {"batch_size": asked.batch_size, "total": indexed.survey.rows}
      with output_files.opened(path, lambda file: output_files.Npy(file, VECTOR, embedder.width)) as write:
        stream.answer(asked.input, prepare, compute, **sizes, write=write)
      yield build.StoredVectors(path)


def _query(asked: argparse.Namespace) -> None:
  """Answers --query or --queries."""
  from pretrain.inference import stream

  opened = SearchIndex.read(pathlib.Path(asked.index))
  opened.refuse_changed_input()
  source = Texts.read(asked.queries, asked.column) if asked.queries else None
  asked.size, column = opened.meta["size"], opened.meta["column"]
  embedder = texts.open_embedder(asked)
  _refuse_other_model(opened, embedder)

  def answered(queries: list[str], inputs: list[Any]) -> list[dict[str, Any]]:
    rows, cosines = opened.nearest(embedder.vectors(inputs), asked.top, ef_search=asked.ef_search)
    return [
      {ANSWERS: _answers(opened, query, *of_query)}
      for query, *of_query in zip(queries, rows.tolist(), cosines.tolist())
    ]

  if source is None:
    (answer,) = answered([asked.query], embedder.inputs([asked.query], "query"))
    print(f"nearest to {asked.query!r}, by cosine:")
    for line in answer[ANSWERS]:
      text = " ".join(line["row"][column].split())
      text = text if len(text) <= 160 else f"{text[:159]}…"
      print(f"{line['score']:7.4f}  row {line['number']:,}: {text}")
    return

  def prepare(part: list[Row]) -> list[Any]:
    return embedder.inputs(list(map(source.text, part)), "query")

  def compute(part: list[Row], inputs: list[Any]) -> list[dict[str, Any]]:
    return answered(list(map(source.text, part)), inputs)

  def summary() -> tuple[str, str, int, int]:
    most = min(asked.top, len(opened.vectors))
    return "text", f"answered, {counted(most, 'row')} each", embedder.cut, embedder.length("query")

  asked.input = asked.queries
  stream.answer_file(asked, _Answers, prepare, compute, summary, total=source.survey.rows)


def _answers(opened: SearchIndex, query: str, rows: list[int], cosines: list[float]) -> list[dict[str, Any]]:
  return [
    {"query": query, "rank": rank, "score": round(cosine, 6), "number": row + 1, "row": opened.fields(row)}
    for rank, (row, cosine) in enumerate(zip(rows, cosines), 1)
    if row >= 0  # a graph may find fewer
  ]


def _refuse_other_model(opened: SearchIndex, embedder: Any) -> None:
  ours = {"model": embedder.digest[:12], **_plain(embedder.schema)}
  changed = list(
    changes({"model": opened.meta["model"][:12], **opened.meta["schema"]}, ours, show=json.dumps).values()
  )
  if changed:
    raise DataError(
      f"{opened.path} was built with another model ({changed[0][:60]}); give its --checkpoint, or "
      f"{index.again(opened.path, opened.meta)}"
    )


def _plain(schema: EmbeddingSchema) -> dict[str, Any]:
  return json.loads(schema.as_json())


def _run(asked: argparse.Namespace) -> None:
  _check(asked)
  (_build if asked.input else _query)(asked)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _run(parser().parse_args(argv)))


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
