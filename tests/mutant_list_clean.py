"""Faults in cleaning. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "data/clean/duplicates.py",
    "tests/data/clean/test_duplicates.py",
    [
      (
        "a range of hashes ends early",
        "np.uint64((number + 1) * 2**64 // ranges)",
        "np.uint64((number + 1) * 2**63 // ranges)",
        "test_workers_ranges_and_order_change_nothing",
      ),
      (
        "documents that share a band are duplicates",
        "is_like = (signed == leading).mean(1) >= threshold",
        "is_like = (signed == leading).mean(1) >= 0",
        "test_planted_edits_are_found_as_counting_finds_them",
      ),
      (
        "bands of different places meet",
        'salt=number.to_bytes(8, "big")',
        "salt=bytes(8)",
        "test_equal_bands_at_other_places_have_other_hashes",
      ),
      (
        "the largest member of a group stays",
        "np.minimum.at(smallest, group, members)",
        "smallest[:] = 0; np.maximum.at(smallest, group, members)",
        "test_a_group_is_all_that_pairs_connect",
      ),
      (
        "groups of earlier pairs are forgotten",
        "members, places = np.unique(_ends(first, array), return_inverse=True)",
        "members, places = np.unique(array, return_inverse=True)",
        "test_a_group_is_all_that_pairs_connect",
      ),
      (
        "a document without text takes a place of others",
        "if document else None",
        "if True else None",
        "test_all_but_the_first_of_a_group_are_dropped",
      ),
      (
        "five characters are compared as five words",
        "size = min(sketch.shingle * width, len(tokens))",
        "size = min(sketch.shingle, len(tokens))",
        "test_case_and_characters_of_scripts_without_spaces",
      ),
    ],
  ),
  (
    "data/clean/apply.py",
    "tests/data/clean/test_apply.py",
    [
      (
        "all documents are compared, whatever earlier steps drop",
        "Dropped(collections.Counter()), until=number)",
        "Dropped(collections.Counter()), until=0)",
        "test_duplicates_are_sought_among_documents_that_reach_the_step",
      ),
      (
        "a step sees the document of before",
        "      document = answer",
        "      answer = document",
        "test_steps_follow_each_other_and_count_what_they_drop",
      ),
    ],
  ),
  (
    "data/clean/repetition.py",
    "tests/data/clean/test_repetition.py",
    [
      (
        "overlapping n-grams count twice",
        "return lengths[np.cumsum(change[:-1]) > 0].sum() / lengths.sum()",
        "return (lengths * np.cumsum(change[:-1])).sum() / lengths.sum()",
        "test_every_share_equals_that_by_counting",
      ),
      (
        "the first of equal lines counts as a duplicate",
        "again.subtract(again.keys())",
        "again.subtract(())",
        "test_duplicate_lines_are_counted_after_their_first",
      ),
    ],
  ),
  (
    "data/clean/language.py",
    "tests/data/clean/test_language.py",
    [
      (
        "a document in another language is kept",
        "return document if code in wanted else",
        "return document if code else",
        "test_documents_in_the_wanted_languages_are_kept",
      ),
      (
        "text is taken for HTML",
        "isPlainText=True",
        "isPlainText=False",
        "test_markup_is_text_and_the_end_of_a_long_document_is_not_looked_at",
      ),
    ],
  ),
  (
    "data/prepare/preparation.py",
    "tests/data/prepare/test_clean.py",
    [
      (
        "other code of a function gives the records of before",
        "if code := cleaning_steps.code_digest(args.clean):",
        'if code := cleaning_steps.code_digest(""):',
        "test_other_code_of_a_function_is_another_setting",
      ),
    ],
  ),
]
