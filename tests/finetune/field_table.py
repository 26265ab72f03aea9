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
  ("search.evaluations_per_epoch", "2", "evaluations"),
  ("data.max_length", "8", "plan step batches evaluations"),
  ("data.train_rows", "12", "plan programs batches"),
  ("data.buckets", "2", _EXAMPLES),
  ("data.bucket_multiple", "4", "plan step batches evaluations"),
  ("data.eval_batch_size", "4", "evaluations"),
  ("train.runs_at_once", "1", "programs step start batches evaluations"),
  ("train.mapping", "vectorized", "step start"),
  ("train.microbatches", "2", "step"),
  ("train.save_minutes", "0", "saves"),
  ("output.predict", "true", "programs batches evaluations"),
]

_MAIN, _WIRES = "tests/finetune/test_main.py", "tests/finetune/test_wires.py"
_SQUAD, _PROMPT = "tests/finetune/squad/test_search.py", "tests/finetune/prompt/test_runs.py"
_OWN = "tests/finetune/own/test_search.py"
_EMBEDDING = "tests/finetune/embedding/test_search.py"
_ROWS = "tests/finetune/embedding/test_load.py"
NO_TEST = ""

# {field: (another value, why it changes nothing in this search, the tests that hold it)}
LEFT_ALONE = {
  "recipe": ("other", "a name, for people", NO_TEST),
  "checkpoint_step": ("7", "the only step there is", _WIRES),
  "checkpoint_layers": ("1", "there is one layer", _WIRES),
  "model.scan_unroll": ("0", "there is one layer", _WIRES),
  "size": ("small", "what 'auto' finds for so narrow an encoder", _WIRES),
  "search.num_test_seeds": ("4", "read with output.predict alone", _MAIN),
  "output.save_model": ("false", "the search is the same without a model", _WIRES),
  "output.compare_with": ("amos_base", "rows of the report", _WIRES),
  "squad.stride": ("64", "read for kind='squad' alone, as are those below", _SQUAD),
  "squad.train_file": ("a.json", "squad", _SQUAD),
  "squad.dev_file": ("b.json", "squad", _SQUAD),
  "squad.max_query_length": ("32", "squad", _SQUAD),
  "squad.max_answer_length": ("20", "squad", _SQUAD),
  "squad.n_best": ("5", "squad", _SQUAD),
  "squad.mask_query": ("false", "squad", _SQUAD),
  "prompt.shots": ("8", "read for kind='prompt' alone, as are those below", _PROMPT),
  "prompt.splits": ("13,21", "prompt", _PROMPT),
  "prompt.directory": ("shots", "prompt", _PROMPT),
  "prompt.words": ("yes,no", "prompt", _PROMPT),
  "prompt.max_length": ("64", "prompt", _PROMPT),
  "prompt.num_samples": ("2", "prompt", _PROMPT),
  "prompt.num_steps": ("500", "prompt", _PROMPT),
  "prompt.eval_every": ("50", "prompt", _PROMPT),
  "own.task": ("regression", "read for kind='own' alone, as are those below", _OWN),
  "own.pooling": ("mean", "own", _OWN),
  "own.class_weights": ("balanced", "own", _OWN),
  "own.label_smoothing": ("0.1", "own", _OWN),
  "own.targets": ("largest", "own", "tests/finetune/own/test_own.py"),
  "embedding.objective": ("cosent", "read for kind='embedding' alone, as are those below", _EMBEDDING),
  "embedding.temperature": ("0.1", "embedding", _EMBEDDING),
  "embedding.both_ways": ("true", "embedding", _EMBEDDING),
  "embedding.negatives": ("1", "embedding", _ROWS),
  "embedding.pooling": ("cls", "embedding", _EMBEDDING),
  "embedding.unit": ("false", "embedding", _EMBEDDING),
  "embedding.query_prefix": ("query: ", "embedding", _EMBEDDING),
  "embedding.passage_prefix": ("passage: ", "embedding", _ROWS),
  "embedding.query_length": ("16", "embedding", _EMBEDDING),
  "embedding.passage_length": ("16", "embedding", _EMBEDDING),
  "embedding.sizes": ("8", "embedding", _EMBEDDING),
  "embedding.score_range": ("0,5", "embedding", _ROWS),
  "data.module": ("tasks.py", "own", _OWN),
  "data.dev_fraction": ("0.2", "own", _OWN),
  "data.text": ("text", "own", _OWN),
  "data.text_pair": ("other", "own", _OWN),
  "data.label": ("label", "own", _OWN),
  "data.labels": ("a,b", "own", _OWN),
  "data.separator": (";", "own", _OWN),
  "data.empty": ("skip", "own", "tests/finetune/own/test_load.py"),
  "data.long": ("windows", "own", _OWN),
}

# {field: the tests that hold it}: the search here cannot do without its own value, or has none.
ELSEWHERE = {
  "data.train_file": _OWN,
  "data.dev_file": _OWN,
  "kind": _WIRES,
  "checkpoint": _MAIN,
  "vocabulary": _WIRES,
  "data.directory": "tests/finetune/test_needed_files.py",
  "search.cells": _WIRES,
}
