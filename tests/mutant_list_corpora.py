"""Faults in the papers' texts and in the text of vocabularies. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/prepare/training_text.py",
    "tests/data/prepare/test_training_text.py",
    [
      (
        "held-out documents are in the sample",
        'found if split == "train")',
        "found if split)",
        "test_a_small_source_is_taken_whole_and_in_order_without_held_out_documents",
      ),
      (
        "the limit is that of each source",
        "size = min(most / sum(rates), *rest)",
        "size = min(most, *rest)",
        "test_the_largest_sample_with_the_rates",
      ),
      (
        "a source of a high rate gives less",
        "rest = [number / rate for",
        "rest = [number * rate for",
        "test_sources_have_their_rates_for_any_number_of_processes",
      ),
      (
        "the sample is the documents that the split is made of",
        'document_fraction(document, "vocabulary", job.seed) < keep',
        'document_fraction(document, "heldout", job.seed) < keep',
        "test_a_large_source_gives_documents_of_all_its_units",
      ),
      (
        "a source without text is left out without a word",
        "if len(taken) > 1 and not number:",
        "if len(taken) > 2 and not number:",
        "test_one_of_several_sources_without_text_is_named",
      ),
    ],
  ),
  (
    "data/vocabulary/__main__.py",
    "tests/data/vocabulary/test_command.py",
    [
      (
        "an infinite rate is taken",
        "if not (0 < rate < math.inf):",
        "if not 0 < rate:",
        "test_rates_and_fields_that_fit_no_source_are_refused",
      ),
      (
        "all sources are read by the first one's field",
        "fields = fields * number if len(fields) == 1 else fields",
        "fields = fields[:1] * number",
        "test_a_vocabulary_of_two_sources_reads_the_field_of_each_and_keeps_their_rates",
      ),
    ],
  ),
  (
    "data/corpora/__main__.py",
    "tests/data/corpora/test_corpora.py",
    [
      (
        "a part of a data set is read whole",
        '[f"--fraction={part.keep}"] * (part.keep < 1)',
        '[f"--fraction={part.keep}"] * (part.keep > 1)',
        "test_a_part_of_a_tfds_data_set_is_a_fraction_of_its_documents",
      ),
      (
        "every TFDS data set has its text under one name",
        'f"--text_field={part.source.text_field}"',
        'f"--text_field=text"',
        "test_a_part_of_a_tfds_data_set_is_a_fraction_of_its_documents",
      ),
    ],
  ),
  (
    "data/corpora/__init__.py",
    "tests/data/corpora/test_corpora.py",
    [
      (
        "a quarter of C4 again",
        "keep=0.084)",
        "keep=0.25)",
        "test_the_sizes_add_up_to_what_the_name_says",
      ),
      (
        "books for validation are trained on",
        'files="pg19/**/train-*.parquet"',
        'files="pg19/**/*.parquet"',
        "test_printed_commands_make_a_vocabulary_and_the_records_of_each_source",
      ),
    ],
  ),
]
