"""Every field of `configs/finetune_base.py`: another value for it, and what (of `facets.py`) it changes.

The search is one of GLUE. A field that changes nothing in it says why.
"""

_EXAMPLES = "plan programs batches evaluations"

# (field, value, facets)
CHANGES = [
  ("seed", "5", "programs batches"),
  ("from_scratch", "true", "start"),
  ("protocol", "taco", "step start"),
  ("tasks", "sst2,stsb", _EXAMPLES),
  ("model.dropout", "0.2", "step"),
  ("model.dtype", "bfloat16", "step"),
  ("model.remat", "true", "step"),
  ("search.batch_sizes", "4", "plan programs step batches"),
  ("search.learning_rates", "2e-2,3e-2", "programs"),
  ("search.epochs", "3", _EXAMPLES),
  ("search.warmup_fractions", "0.25", "programs"),
  ("search.num_seeds", "3", f"{_EXAMPLES} step start"),
  ("search.evaluations_per_epoch", "2", "programs evaluations"),
  ("data.max_length", "8", "plan step batches evaluations"),
  ("data.train_rows", "12", "plan programs batches"),
  ("data.fractions", "0.5", f"{_EXAMPLES} step start"),
  ("data.buckets", "2", _EXAMPLES),
  ("data.bucket_multiple", "4", "plan step batches evaluations"),
  ("data.eval_batch_size", "4", "programs evaluations"),
  ("train.runs_at_once", "1", "programs step start batches evaluations"),
  ("train.mapping", "vectorized", "step start"),
  ("train.microbatches", "2", "step"),
  ("train.save_minutes", "0", "saves"),
  ("output.save_model", "false", "programs batches evaluations"),
  ("output.predict", "true", "programs batches evaluations"),
]

# {field: (another value, why it changes nothing in this search)}
LEFT_ALONE = {
  "recipe": ("other", "a name, for people"),
  "checkpoint_step": ("7", "the only step there is; others are refused: tests/finetune/test_main.py"),
  "size": ("small", "what 'auto' finds for so narrow an encoder"),
  "search.num_test_seeds": ("4", "read with output.predict alone"),
  "output.compare_with": ("amos_base", "rows of the report: tests/finetune/papers/test_reference_rows.py"),
  "squad.stride": ("64", "read for kind='squad' alone, as are those below: tests/finetune/squad"),
  "squad.train_file": ("a.json", "squad"),
  "squad.dev_file": ("b.json", "squad"),
  "squad.max_query_length": ("32", "squad"),
  "squad.max_answer_length": ("20", "squad"),
  "squad.n_best": ("5", "squad"),
  "squad.mask_query": ("false", "squad"),
  "prompt.shots": ("8", "read for kind='prompt' alone, as are those below: tests/finetune/prompt"),
  "prompt.splits": ("13,21", "prompt"),
  "prompt.directory": ("shots", "prompt"),
  "prompt.words": ("yes,no", "prompt"),
  "prompt.max_length": ("64", "prompt"),
  "prompt.num_samples": ("2", "prompt"),
  "prompt.num_steps": ("500", "prompt"),
  "prompt.eval_every": ("50", "prompt"),
  "prompt.batch_sizes": ("2", "prompt"),
  "prompt.learning_rates": ("1e-5", "prompt"),
  "prompt.test_rows": ("10", "prompt"),
  "own.task": ("regression", "read for kind='own' alone, as are those below: tests/finetune/own"),
  "own.pooling": ("mean", "own"),
  "own.class_weights": ("balanced", "own"),
  "own.label_smoothing": ("0.1", "own"),
  "own.targets": ("largest", "own"),
  "data.train_file": ("a.csv", "own"),
  "data.dev_file": ("b.csv", "own"),
  "data.module": ("tasks.py", "own"),
  "data.dev_fraction": ("0.2", "own"),
  "data.text": ("text", "own"),
  "data.text_pair": ("other", "own"),
  "data.label": ("label", "own"),
  "data.labels": ("a,b", "own"),
  "data.separator": (";", "own"),
  "data.long": ("windows", "own"),
}

# {field: the tests that hold it}: the search here cannot do without its own value.
ELSEWHERE = {
  "kind": "tests/finetune/test_main.py",
  "checkpoint": "tests/finetune/test_main.py",
  "vocabulary": "tests/finetune/test_main.py",
  "data.directory": "tests/finetune/test_needed_files.py",
  "search.cells": "tests/finetune/papers/test_protocols.py",
  "search.warmup_steps": "tests/finetune/papers/test_protocols.py",
}
