"""Faults in packed units, shards and plans. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/prepare/unit_files.py",
    "tests/data/prepare/test_prepare.py",
    [
      (
        "shuffling depends on chance",
        "keys = shuffle_keys(seed, unit, sizes.size)",
        "keys = shuffle_keys(seed + np.random.randint(99), unit, sizes.size)",
        "test_two_workers_give_the_same_bytes_as_one",
      ),
    ],
  ),
  (
    "data/prepare/unit_files.py",
    "tests/data/prepare/test_unit_files.py",
    [
      (
        "the counts of a unit appear before its records",
        "key=lambda file: file.name == COUNTS",
        "key=lambda file: file.name != COUNTS",
        "test_the_counts_of_a_unit_are_its_last_file",
      ),
      (
        "a range of keys begins a record late",
        "start = int(self.ends[first - 1]) if first else self.start",
        "start = int(self.ends[first]) if first else self.start",
        "test_a_range_of_keys_is_one_piece_of_the_files",
      ),
    ],
  ),
  (
    "data/prepare/shards.py",
    "tests/data/prepare/test_unit_files.py",
    [
      (
        "the parts of the keys leave out the largest",
        "part = [low + (high - low) * border // shards for border in (shard, shard + 1)]",
        "part = [low + (high - low) // (shards + 1) * border for border in (shard, shard + 1)]",
        "test_shards_cut_the_range_of_keys_and_miss_no_record",
      ),
    ],
  ),
  (
    "data/text_files.py",
    "tests/data/test_text_files.py",
    [
      (
        "planning reads whole units",
        "file.read(len(piece) or min(FIRST_LOOK, unit_bytes))",
        "file.read(len(piece) or unit_bytes)",
        "test_planning_reads_little_of_a_large_file",
      ),
    ],
  ),
]
