"""Compares the speed of `pack_unit` and `write_shard` with that of the sentencepiece library alone.

  python -m benchmarks.prepare --source=TEXT.txt --vocabulary=DIR

One JSON line. Seconds are CPU seconds of this process, medians over rounds in which both sides process the
whole text in alternation. `seconds_bare` is the library alone (sentencepiece or WordPiece), called once per
chunk without threads; `ratio` is `seconds_bare` divided by the seconds of the preparation. `seconds_first` is
the first round, in which no word is cached. `mb_peak` is the largest resident memory.
"""

import collections
import functools
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from data import command, sources, vocabulary
from data.prepare import pipeline, shards
from data.vocabulary import tokenizer_files
from lab.speed import cases


def cpu_seconds(function: Callable[[], object]) -> float:
  """Returns the CPU seconds that this process spends in a call."""
  started = time.process_time()
  function()
  return time.process_time() - started


def bare_encoder(directory: pathlib.Path, words: vocabulary.Vocabulary) -> Callable[[list[str]], object]:
  """Returns the library's own function from sentences to ids for a vocabulary."""
  if words.kind == "wordpiece":
    return tokenizer_files.wordpiece_encoder(
      tokenizer_files.read_vocab_txt(directory / "vocab.txt"), cased=words.cased
    )
  processor, _ = tokenizer_files.read_sp_model(directory / "sp.model")
  return functools.partial(processor.encode, out_type=int, num_threads=1)


def encode_all(encode: Callable[[list[str]], object], job: pipeline.Job, plan: sources.Plan) -> float:
  """Returns the CPU seconds of `encode` alone on all sentences, in the chunks of a preparation."""
  seconds = 0.0
  for unit in plan.units:
    for chunk in pipeline.text_chunks(job, unit, collections.Counter()):
      for documents in chunk.values():
        texts = [sentence for document in documents for sentence in document]
        seconds += cpu_seconds(functools.partial(encode, texts))
  return seconds


def prepare_all(job: pipeline.Job, plan: sources.Plan, size: int) -> dict[str, float]:
  """Prepares the text; returns its tokens, and CPU seconds for packing units and for writing shards."""
  shutil.rmtree(job.work, ignore_errors=True)
  job.work.mkdir()
  counts: collections.Counter = collections.Counter()

  def pack() -> None:
    for number, unit in enumerate(plan.units):
      counts.update(pipeline.pack_unit(job, number, unit))

  def write() -> None:
    packed = shards.Packed(job, len(plan.units), size)
    for split in pipeline.SPLITS:
      number = packed.num_shards(counts[f"{split}_tokens"])
      for shard in range(number):
        shards.write_shard(packed, split, number, shard)

  units, records = cpu_seconds(pack), cpu_seconds(write)
  tokens = sum(counts[f"{split}_tokens"] for split in pipeline.SPLITS)
  return {"tokens": tokens, "units": units, "shards": records}


def main() -> None:
  """Times the preparation and the library alone, and prints the results as one JSON line."""
  parser = command.Parser(description=__doc__)
  parser.add_argument("--source", required=True, help="text files, as for data.prepare")
  parser.add_argument("--vocabulary", required=True, help="its directory")
  parser.add_argument("--length", type=int, default=512, help="most tokens in a record")
  parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
  asked = parser.parse_args()
  command.refuse_below_one(asked, "rounds")
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    request, output = sources.Request(asked.source), folder / "records"
    shutil.copytree(asked.vocabulary, output / "vocabulary")
    planned: list[sources.Plan] = []
    planning = cpu_seconds(lambda: planned.append(sources.plan(request)))
    plan = planned[0]
    job = pipeline.Job(request, str(output), asked.length, "complete", 0, 0.02, 1.0)
    words = vocabulary.load_cached(job.vocabulary)
    bare, made = [], []
    for _ in range(asked.rounds):
      made.append(prepare_all(job, plan, words.size))
      memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
      bare.append(encode_all(bare_encoder(output / "vocabulary", words), job, plan))
  alone = statistics.median(bare)
  units, records = (statistics.median(one[part] for one in made) for part in ("units", "shards"))
  tokens = made[0]["tokens"]
  cases.report(
    {
      "benchmark": "prepare",
      "vocabulary": f"{words.kind}, {words.pretokenization}, {words.size}",
      "megabytes": sum(pathlib.Path(name).stat().st_size for name in sources.expand(asked.source)) / 1e6,
      "tokens": tokens,
      "seconds_planning": planning,
      "seconds_units": units,
      "seconds_shards": records,
      "seconds_first": made[0]["units"] + made[0]["shards"],
      "seconds_bare": alone,
      "tokens_per_cpu_second": tokens / (units + records),
      "ratio": alone / (units + records),
      "ratio_first": alone / (made[0]["units"] + made[0]["shards"]),
      "mb_peak": memory,
    }
  )


if __name__ == "__main__":
  sys.exit(command.run(main))
