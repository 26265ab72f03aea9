"""Every field of a fine-tuning config changes what it is there for in a search; nothing is compiled."""

import jax
import pytest

from configs import finetune_base
from pretrain.checkpoints import resume
from tests.finetune.facets import facets

_EXAMPLES = "plan programs batches evaluations"
# {field: (another value, the facets that it changes)}
CHANGES = {
  "seed": ("5", "programs batches"),
  "from_scratch": ("true", "start"),
  "protocol": ("taco", "step start"),
  "tasks": ("sst2,stsb", _EXAMPLES),
  "model.dropout": ("0.2", "step"),
  "model.dtype": ("bfloat16", "step"),
  "model.remat": ("true", "step"),
  "search.batch_sizes": ("4", "plan programs step batches"),
  "search.learning_rates": ("2e-2,3e-2", "programs"),
  "search.epochs": ("3", _EXAMPLES),
  "search.warmup_fractions": ("0.25", "programs"),
  "search.num_seeds": ("3", f"{_EXAMPLES} step start"),
  "search.evaluations_per_epoch": ("2", "evaluations"),
  "data.max_length": ("8", "plan step batches evaluations"),
  "data.train_rows": ("12", "plan programs batches"),
  "data.buckets": ("2", _EXAMPLES),
  "data.bucket_multiple": ("4", "plan step batches evaluations"),
  "data.eval_batch_size": ("4", "evaluations"),
  "train.runs_at_once": ("1", "programs step start batches evaluations"),
  "train.mapping": ("vectorized", "step start"),
  "train.microbatches": ("2", "step"),
  "train.save_minutes": ("0", "saves"),
  "output.predict": ("true", "programs batches evaluations"),
}
# Fields whose facets differ, so that one program is traced for all of them. The nightly loop has each alone.
DAILY = (
  ("search.learning_rates", "train.save_minutes", "data.eval_batch_size", "model.dropout", "from_scratch"),
  ("search.warmup_fractions", "search.evaluations_per_epoch", "model.dtype"),
  ("seed", "train.microbatches"),
  ("output.predict",),
  ("tasks",),
  ("search.epochs",),
)
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
# The search here cannot do without its own value, or has none.
ELSEWHERE = {"data.train_file", "data.dev_file", "kind", "checkpoint", "vocabulary", "data.directory"}
ELSEWHERE |= {"search.cells"}


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


@pytest.fixture(scope="module", autouse=True)
def _keeps_traces():
  """What all searches trace alike is traced once: a search forgets it when it ends."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "clear_caches", lambda: None)
    yield


_unchanged: dict = {}


@pytest.fixture
def unchanged(command, capsys):
  """The facets of the command as it is, made once."""
  if not _unchanged:
    _unchanged.update(facets(command, capsys, is_traced=True))
  return _unchanged


def _failures(groups, command, unchanged, capsys) -> list[str]:
  """Of groups of fields that are changed together, what is changed that should not be, and the reverse."""
  failures = []
  for fields in groups:
    expected = {facet for field in fields for facet in CHANGES[field][1].split()}
    is_traced = bool({"step", "start"} & expected)
    flags = [f"--config.{field}={CHANGES[field][0]}" for field in fields]
    found = facets([*command, *flags], capsys, is_traced=is_traced)
    compared = found if is_traced else found.keys() - {"step", "start"}
    changed = {name for name in compared if found[name] != unchanged[name]}
    failures += [f"{fields}: {sorted(changed ^ expected)}"] * (changed != expected)
  return failures


def test_every_field_is_in_one_of_the_tables():
  named = [*CHANGES, *(pair.partition("=")[0] for pair in LEFT_ALONE), *ELSEWHERE]
  assert sorted(named) == sorted(resume.flatten(finetune_base.get_config().to_dict()))


def test_fields_change_what_they_should(command, unchanged, capsys):
  failures = _failures(DAILY, command, unchanged, capsys)
  assert not failures, "\n".join(failures)


@pytest.mark.nightly
def test_each_field_changes_what_it_should_and_nothing_else(command, unchanged, capsys):
  failures = _failures([(field,) for field in CHANGES], command, unchanged, capsys)
  assert not failures, "\n".join(failures)


def test_fields_of_other_things_change_nothing_and_their_files_are_refused(command, unchanged, capsys):
  more = [f"--config.{pair}" for pair in LEFT_ALONE]
  assert facets([*command, *more], capsys, is_traced=True) == unchanged
  with pytest.raises(SystemExit, match="2"):
    facets([*command, "--config.data.train_file=a.csv"], capsys, is_traced=True)
  assert "\n  --config=configs/finetune_own.py" in capsys.readouterr().err
