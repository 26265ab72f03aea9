"""Every field of a fine-tuning config changes what it is there for in a search of GLUE, and nothing else.

Facets of a search, as text that is compared; nothing is compiled:

  plan         the lines about examples, padded lengths and steps
  runs         seeds, learning rates, steps and warm-up of the runs
  step         the loss as it is traced, optimizer and microbatches
  start        the values that an encoder starts from
  batches      the examples that the training steps get
  evaluations  the examples that are evaluated, and when
"""

import collections
import hashlib

import jax
import numpy as np
import pytest

from configs import finetune_base
from finetune import main
from finetune.glue.search import Glue
from finetune.search.search import Search
from finetune.search.session import Session
from pretrain.checkpoints import resume
from pretrain.command import parse_arguments, read_arguments
from pretrain.stop import StopRequest
from tests.pretrain.facets import digest

_EXAMPLES = "plan runs batches evaluations"
# {field: (another value, the facets that it changes)}
CHANGES = {
  "seed": ("5", "runs batches"),
  "from_scratch": ("true", "start"),
  "protocol": ("taco", "step"),
  "tasks": ("sst2,stsb", f"{_EXAMPLES} step start"),
  "model.dropout": ("0.2", "step"),
  "model.dtype": ("bfloat16", "step"),
  "model.remat": ("full", "step"),
  "search.batch_sizes": ("4", "plan runs step batches evaluations"),
  "search.learning_rates": ("2e-2,3e-2", "runs"),
  "search.epochs": ("3", _EXAMPLES),
  "search.warmup_fractions": ("0.25", "runs"),
  "search.num_seeds": ("3", "plan runs batches"),
  "search.evaluations_per_epoch": ("2", "evaluations"),
  "data.max_length": ("8", "plan step batches evaluations"),
  "data.train_rows": ("12", _EXAMPLES),
  "data.buckets": ("2", _EXAMPLES),
  "data.bucket_multiple": ("4", "plan step batches evaluations"),
  "data.eval_batch_size": ("4", "evaluations"),
  "train.microbatches": ("2", "step"),
  "output.predict": ("true", "plan evaluations"),
}
# Fields that change nothing here, with other values: a name; the only step and layer; what 'auto' finds; what
# is read with output.predict alone; a model; rows of the report; what other kinds read.
_LEFT_ALONE = """
  recipe=other checkpoint_step=7 checkpoint_layers=1 model.scan_unroll=0 size=small search.num_test_seeds=4
  output.save_model=false output.compare_with=amos_base
  squad.stride=64 squad.train_file=a.json squad.dev_file=b.json squad.max_query_length=32
  squad.max_answer_length=20 squad.n_best=5 squad.mask_query=false
  prompt.shots=8 prompt.splits=13,21 prompt.directory=shots prompt.words=yes,no prompt.max_length=64
  prompt.num_samples=2 prompt.num_steps=500 prompt.eval_every=50
  own.task=regression own.pooling=mean own.class_weights=balanced own.label_smoothing=0.1 own.targets=largest
  data.module=tasks.py data.dev_fraction=0.2 data.text=text data.text_pair=other data.label=label
  data.labels=a,b data.separator=; data.empty=skip data.long=windows
  embedding.objective=cosent embedding.temperature=0.1 embedding.both_ways=true embedding.negatives=1
  embedding.pooling=cls embedding.unit=false embedding.query_prefix=query: embedding.passage_prefix=passage:
  embedding.query_length=16 embedding.passage_length=16 embedding.sizes=8 embedding.score_range=0,5
"""
LEFT_ALONE = _LEFT_ALONE.split()
# The search here cannot do without its own value, or has none; saves are those of test_main.
ELSEWHERE = {"data.train_file", "data.dev_file", "kind", "checkpoint", "vocabulary", "data.directory"}
ELSEWHERE |= {"search.cells", "train.save_minutes"}


def _sha(batch) -> str:
  content = hashlib.sha256()
  for name in sorted(batch):
    content.update(f"{name} {np.shape(batch[name])}".encode() + np.asarray(batch[name]).tobytes())
  return content.hexdigest()[:16]


def facets(command: list[str], workdir) -> dict[str, str]:
  """The facets of a command by name."""
  session = Session(read_arguments(command, main.PROGRAM).config, str(workdir), stop=StopRequest())
  made, found = Glue(session, download=False), collections.defaultdict(list)
  found["plan"] = [
    line for line in made.describe() if "most" in line or "padded" in line or "predicts" in line
  ]
  for plan in made.plans:
    search, (cell, *_) = Search(plan, session), plan.cells
    found["runs"] += [plan.hyper(each, seed) for each in plan.cells for seed in plan.seeds]
    for seed in plan.seeds:
      feed = plan.feed(seed, cell.batch_size)
      found["batches"] += [_sha(feed(step)) for step in range(plan.schedule(cell).num_steps)]
    found["start"].append(digest(jax.make_jaxpr(plan.init_encoder)(jax.random.key(0))))

    def outputs_of(batch, plan=plan):
      found["evaluations"].append(_sha(batch))
      return np.zeros((len(batch["ids"]), 1 if plan.name == "stsb" else 2), np.float32)

    found["evaluations"].append(plan.schedule(cell))
    plan.evaluate(outputs_of, plan.seeds[0])

    def loss(key, batch, plan=plan):
      encoder = jax.tree.map(jax.numpy.asarray, session.start.encoder.params)
      params = {"encoder": encoder, "heads": plan.problem.init_heads(key)}
      keys = jax.random.split(key, len(batch["ids"]))
      return plan.problem.loss(plan.problem.outputs(params, batch, keys), batch)[0]

    batch = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in feed(0).items()}
    found["step"] += [digest(jax.make_jaxpr(loss)(jax.random.key(0), batch))]
    found["step"] += [search.trainer._settings, search.trainer.microbatches]
  found["evaluations"] += [list(tests.sets) for tests in made.tests.values()]
  return {name: str(values) for name, values in found.items()}


@pytest.fixture(scope="module")
def command(small_encoder_run, small_glue_folder):
  """A search of one task: two learning rates, two seeds."""
  fields = {
    "checkpoint": small_encoder_run,
    "tasks": "sst2",
    "data.directory": small_glue_folder,
    "data.buckets": 1,
    "search.batch_sizes": 8,
    "search.epochs": 2,
    "search.learning_rates": "1e-2,2e-2",
    "search.warmup_fractions": 0.1,
    "search.num_seeds": 2,
    "search.num_test_seeds": 3,
    "search.evaluations_per_epoch": 1,
    "output.predict": "false",
  }
  return [
    "--config=configs/finetune_glue.py",
    *(f"--config.{name}={value}" for name, value in fields.items()),
  ]


def test_every_field_is_in_one_of_the_tables():
  named = [*CHANGES, *(pair.partition("=")[0] for pair in LEFT_ALONE), *ELSEWHERE]
  assert sorted(named) == sorted(resume.flatten(finetune_base.get_config().to_dict()))


def test_each_field_changes_what_it_should_and_nothing_else(command, tmp_path, capsys):
  unchanged, failures = facets(command, tmp_path), []
  for field, (value, expected) in CHANGES.items():
    found = facets([*command, f"--config.{field}={value}"], tmp_path)
    changed = {name for name in found if found[name] != unchanged[name]}
    failures += [f"{field}: {sorted(changed)}"] * (changed != set(expected.split()))
  assert not failures, "\n".join(failures)
  # Fields of other things change nothing, and their files are refused.
  assert facets([*command, *(f"--config.{pair}" for pair in LEFT_ALONE)], tmp_path) == unchanged
  with pytest.raises(SystemExit, match="2"):
    parse_arguments([*command, "--config.data.train_file=a.csv"], main.PROGRAM)
  assert "\n  --config=configs/finetune_own.py" in capsys.readouterr().err
