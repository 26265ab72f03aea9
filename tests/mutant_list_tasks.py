"""Faults of our Tasks for seqio, and of Tasks that give ids. Columns as in `mutant_list.py`."""

_TASKS = "tests/data/tasks/test_tasks.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/tasks/packed.py",
    _TASKS,
    [
      (
        "chunks are counted in documents of one split",
        'characters += int(example["characters"])',
        'characters += int(example["characters"]) * example.get("is_read", True)',
        "test_the_blocks_of_a_task_sorted_by_key_are_the_records[complete-plain]",
      ),
      (
        "nothing held out is no error",
        'if split == "heldout" and self._heldout_fraction and not any(',
        'if split == "held" and self._heldout_fraction and not any(',
        "test_what_would_lose_tokens_or_the_order_is_refused_in_one_line",
      ),
      (
        "a chunk goes on in the next unit",
        'if example.get("unit", 0) != unit or characters',
        "if characters",
        "test_a_task_is_its_units_one_after_another_and_has_the_held_out_documents",
      ),
    ],
  ),
  (
    "data/tasks/prepared.py",
    _TASKS,
    [
      (
        "every shard has the rows of the first",
        "start = first + index",
        "start = first",
        "test_prepared_records_through_seqio_are_the_trainers_batches[shards]",
      ),
      (
        "reading begins at step 0",
        "start = first + index",
        "start = index",
        "test_prepared_records_through_seqio_are_the_trainers_batches[a million steps on]",
      ),
    ],
  ),
  (
    "data/tasks/converter.py",
    _TASKS,
    [
      (
        "rows are padded with [CLS]",
        "constant_values=self._pad_id",
        "constant_values=0",
        "test_a_row_is_padded_with_our_pad_and_has_positions_and_a_segment",
      ),
    ],
  ),
  (
    "data/tasks/vocabulary.py",
    _TASKS,
    [
      (
        "decoding ends at the first [SEP]",
        "return None  # seqio",
        "return self.words.special_ids.sep  # seqio",
        "test_a_vocabulary_gives_the_same_ids_in_seqio[plain]",
      ),
      (
        "copies of a vocabulary differ",
        "self.digest == other.digest",
        "self.directory == other.directory",
        "test_a_vocabulary_gives_the_same_ids_in_seqio[official]",
      ),
    ],
  ),
  (
    "data/prepare/tokenised.py",
    _TASKS,
    [
      (
        "finished blocks are taken for broken text",
        "unit.part.tokenised.packing or ids[0] == special.cls",
        "unit.part.tokenised.packing",
        "test_examples_that_begin_with_cls_are_records_without_their_padding",
      ),
      (
        "records keep their padding",
        "ids[ids != words.special_ids.pad].astype",
        "ids.astype",
        "test_examples_that_begin_with_cls_are_records_without_their_padding",
      ),
    ],
  ),
  (
    "data/tfds_reader.py",
    _TASKS,
    [
      (
        "a notebook loses its accelerators",
        'if "tensorflow" not in sys.modules:',
        "if True:",
        "test_a_notebook_keeps_its_accelerators",
      ),
    ],
  ),
]
