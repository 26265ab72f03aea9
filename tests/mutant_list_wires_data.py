"""Faults of the wires of prepared data; see `mutant_list_wires.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/prepare/packing.py",
    "tests/data/prepare/test_packing.py",
    [
      (
        "a document without tokens leaves a border",
        'if entries and sentences and mode != "eos":',
        'if entries and mode != "eos":',
        "test_a_document_without_tokens_leaves_no_trace[complete]",
      )
    ],
  ),
  (
    "data/prepare/preparation.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "another seed is the same preparation",
        'SETTINGS += ("seed", ',
        "SETTINGS += (",
        "test_a_preparation_with_another_value_of_these_flags_is_another_one",
      )
    ],
  ),
  (
    "data/prepare/pipeline.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "the same documents held out for every seed",
        'document_fraction(document, "heldout", job.seed)',
        'document_fraction(document, "heldout", 0)',
        "test_the_vocabulary_is_trained_on_training_documents_alone_which_the_seed_decides",
      ),
    ],
  ),
  (
    "data/sources.py",
    "tests/data/test_sources.py",
    [
      (
        "TFDS as far as the first shard",
        "for shard in range(num_shards)]",
        "for shard in range(1)]",
        "test_every_shard_of_a_tfds_set_is_read_and_no_two_by_one_unit",
      ),
      (
        "every shard of a Task is its first",
        'Unit("seqio", task, shard, num_shards, keep)',
        'Unit("seqio", task, 0, num_shards, keep)',
        "test_every_shard_of_a_seqio_task_is_read_and_no_two_by_one_unit",
      ),
      (
        "TFDS is never downloaded",
        "name, download=request.download)",
        "name, download=False)",
        "test_data_is_downloaded_if_the_flag_says_so[True-tfds:books]",
      ),
    ],
  ),
  (
    "data/seqio_tasks.py",
    "tests/data/test_sources.py",
    [
      (
        "seqio reads the first shard alone",
        "seqio.ShardInfo(shard, num_shards)",
        "seqio.ShardInfo(0, num_shards)",
        "test_every_shard_of_a_seqio_task_is_read_and_no_two_by_one_unit",
      )
    ],
  ),
  (
    "data/tfds_reader.py",
    "tests/data/test_sources.py",
    [
      (
        "TFDS reads the first shard alone",
        "[{start}shard:{stop}shard]",
        "[0shard:1shard]",
        "test_every_shard_of_a_tfds_set_is_read_and_no_two_by_one_unit",
      )
    ],
  ),
]
