"""One-line faults that somebody could make, each with the test that has to notice; `mutants.py` runs them.

The tables beside this file hold (file, file of tests, rows of (name, original, fault, test)): `original` is
a part of one line that stands exactly once in the file, `test` the quickest one that bites.
"""

from typing import NamedTuple

from tests import (
  mutant_list_attention,
  mutant_list_buckets,
  mutant_list_clean,
  mutant_list_corpora,
  mutant_list_corpora_speed,
  mutant_list_engines,
  mutant_list_feed,
  mutant_list_finetune,
  mutant_list_gpu,
  mutant_list_inspect,
  mutant_list_mixture,
  mutant_list_model,
  mutant_list_own,
  mutant_list_pod,
  mutant_list_probes,
  mutant_list_programs,
  mutant_list_run,
  mutant_list_search,
  mutant_list_see,
  mutant_list_survival,
  mutant_list_tables,
  mutant_list_tasks,
  mutant_list_unequal,
  mutant_list_units,
  mutant_list_wires,
  mutant_list_wires_data,
  mutant_list_wires_finetune,
)


class Mutant(NamedTuple):
  """A fault and who catches it."""

  name: str
  file: str  # from the root of the project
  original: str
  fault: str
  test: str  # pytest's name of one test


MUTANTS = [
  Mutant(name, file, original, fault, f"{tests}::{test}")
  for file, tests, rows in (
    *mutant_list_model.FAULTS,
    *mutant_list_attention.FAULTS,
    *mutant_list_run.FAULTS,
    *mutant_list_pod.FAULTS,
    *mutant_list_buckets.FAULTS,
    *mutant_list_clean.FAULTS,
    *mutant_list_feed.FAULTS,
    *mutant_list_finetune.FAULTS,
    *mutant_list_search.FAULTS,
    *mutant_list_see.FAULTS,
    *mutant_list_probes.FAULTS,
    *mutant_list_programs.FAULTS,
    *mutant_list_gpu.FAULTS,
    *mutant_list_survival.FAULTS,
    *mutant_list_unequal.FAULTS,
    *mutant_list_units.FAULTS,
    *mutant_list_mixture.FAULTS,
    *mutant_list_corpora_speed.FAULTS,
    *mutant_list_engines.FAULTS,
    *mutant_list_corpora.FAULTS,
    *mutant_list_tables.FAULTS,
    *mutant_list_tasks.FAULTS,
    *mutant_list_own.FAULTS,
    *mutant_list_inspect.FAULTS,
    *mutant_list_wires.FAULTS,
    *mutant_list_wires_data.FAULTS,
    *mutant_list_wires_finetune.FAULTS,
  )
  for name, original, fault, test in rows
]
