"""Faults of one's own tasks, their answers and what is finished. Columns as in `mutant_list.py`."""

_PLAIN = "tests/finetune/own/test_plain.py"

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "finetune/own/targets.py",
    _PLAIN,
    [
      (
        "the share that is held out is the rest",
        'int.from_bytes(digest[:8], "big") < fraction * 2**64',
        'int.from_bytes(digest[:8], "big") >= fraction * 2**64',
        "test_equal_texts_are_held_out_together_and_the_share_is_kept",
      ),
    ],
  ),
  (
    "finetune/own/answers.py",
    _PLAIN,
    [
      (
        "the windows of a text are summed, not averaged",
        "return (total / np.bincount(made.row)[:, None]).astype(np.float32)",
        "return total.astype(np.float32)",
        "test_the_outputs_of_a_text_are_the_mean_of_its_windows",
      ),
    ],
  ),
  (
    "finetune/own/answers.py",
    _PLAIN,
    [
      (
        "several labels are likely where they are not",
        "np.exp(-np.logaddexp(0.0, -logits))",
        "np.exp(-np.logaddexp(0.0, logits))",
        "test_answers_have_the_label_and_every_probability",
      ),
    ],
  ),
  (
    "finetune/own/metrics.py",
    _PLAIN,
    [
      (
        "a rare class counts as little as it is rare",
        '"macro_f1": _f1(targets, predicted, "macro")',
        '"macro_f1": _f1(targets, predicted, "micro")',
        "test_scores_by_hand",
      ),
    ],
  ),
  (
    "finetune/own/search.py",
    _PLAIN,
    [
      (
        "a tiny file is read without end",
        "enough = min(-(-LEAST_STEPS // steps_per_epoch), MOST_EPOCHS)",
        "enough = max(-(-LEAST_STEPS // steps_per_epoch), MOST_EPOCHS)",
        "test_a_small_file_is_read_more_often[4-30]",
      ),
    ],
  ),
  (
    "finetune/own/spans.py",
    "tests/finetune/own/test_spans.py",
    [
      (
        "the second span is where the first one is",
        "SECOND * (second[0] <= word < second[1])",
        "SECOND * (first[0] <= word < first[1])",
        "test_every_pair_of_spans_is_an_example_with_its_tokens_marked",
      ),
      (
        "a sentence is cut around its first span",
        "_shown(sizes, min(first[0], second[0]), max(first[1], second[1]), room)",
        "_shown(sizes, *first, room)",
        "test_a_long_sentence_is_cut_around_its_spans",
      ),
    ],
  ),
  (
    "finetune/own/problems.py",
    "tests/finetune/own/test_spans.py",
    [
      (
        "both vectors are of the first span",
        "for of in (spans.FIRST, spans.SECOND)",
        "for of in (spans.FIRST, spans.FIRST)",
        "test_the_vectors_of_spans_are_means_of_their_tokens",
      ),
    ],
  ),
  (
    "data/output/parts.py",
    "tests/data/output/test_output.py",
    [
      (
        "an output that was changed is taken for finished",
        'if done.get("output") != files.sha256(self.output):',
        'if not done.get("output"):',
        "test_a_finished_output_is_known_again_and_another_is_not",
      ),
    ],
  ),
  (
    "data/rows/datasets.py",
    "tests/data/rows/test_datasets.py",
    [
      (
        "the split behind a name is ignored",
        "return name, split or otherwise",
        "return name, otherwise",
        "test_a_name_says_what_it_is_of_and_which_split[tfds:glue/cola:2.0.0#validation-tfds-split0]",
      ),
    ],
  ),
]
