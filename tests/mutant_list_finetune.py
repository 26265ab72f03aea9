"""Faults of fine-tuning: heads, losses, scores, decoding of answers. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/models/heads.py",
    "tests/pretrain/models/test_heads.py",
    [
      (
        "classification head has the approximate gelu",
        '"gelu": gelu}',
        '"gelu": jax.nn.gelu}',
        "test_classification_head_is_two_linear_layers_with_an_activation_between[gelu]",
      ),
      (
        "both dropouts of a classification head draw one mask",
        "row_keys, Use.HEAD_HIDDEN_DROPOUT,",
        "row_keys, Use.HEAD_INPUT_DROPOUT,",
        "test_classification_head_drops_before_and_after_the_dense_layer_with_masks_of_their_own",
      ),
      (
        "an answer may start anywhere",
        "jnp.where(allowed[..., None], logits, -jnp.inf)",
        "jnp.where(allowed[..., None], logits, logits)",
        "test_question_answering_head_gives_starts_and_ends_and_minus_infinity_where_none_may_be",
      ),
      (
        "start and end are exchanged",
        "return logits[..., 0], logits[..., 1]",
        "return logits[..., 1], logits[..., 0]",
        "test_question_answering_head_gives_starts_and_ends_and_minus_infinity_where_none_may_be",
      ),
    ],
  ),
  (
    "pretrain/export/official/names.py",
    "tests/pretrain/export/test_task_head_names.py",
    [
      (
        "end of an answer is read as its start",
        "np.concatenate([start, end])",
        "np.concatenate([end, start])",
        "test_heads_of_fine_tuning_survive_import_and_export[fairseq]",
      ),
    ],
  ),
  (
    "pretrain/embed/vectors.py",
    "tests/finetune/search/test_classification.py",
    [
      (
        "the last layer is computed whole for a head on [CLS]",
        'if pooling == "cls" and config.num_layers else None',
        "if False else None",
        "test_the_last_layer_is_computed_where_the_pooling_reads_it[cls-False]",
      ),
      (
        "a mean over tokens reads [CLS] alone",
        'if pooling == "cls" and config.num_layers else None',
        "if config.num_layers else None",
        "test_the_last_layer_is_computed_where_the_pooling_reads_it[mean-True]",
      ),
      (
        "fine-tuning drops nothing in the encoder",
        "row_keys=row_keys, read=read",
        "row_keys=None, read=read",
        "test_a_head_on_cls_gives_what_it_gives_on_a_whole_last_layer[dropout]",
      ),
    ],
  ),
  (
    "finetune/search/losses.py",
    "tests/finetune/search/test_losses.py",
    [
      (
        "label -1 is the last class",
        "is_class = (targets >= 0) & (targets < logits.shape[-1])",
        "is_class = targets < logits.shape[-1]",
        "test_label_outside_the_classes_is_never_taken_for_another[-1]",
      ),
      (
        "padding of classes is multiplied by 0",
        "logits = jnp.where(is_counted[:, None], logits.astype(jnp.float32), 0.0)",
        "logits = logits.astype(jnp.float32)",
        "test_padding_gives_exactly_nothing_whatever_is_in_it[span]",
      ),
      (
        "padding of a regression is multiplied by 0",
        "jnp.where(weights > 0, error, 0.0)",
        "error",
        "test_padding_gives_exactly_nothing_whatever_is_in_it[regression]",
      ),
      (
        "span loss is not halved",
        "return 0.5 * (",
        "return 1.0 * (",
        "test_span_costs_half_of_start_and_half_of_end",
      ),
    ],
  ),
  (
    "finetune/papers/glue_metrics.py",
    "tests/finetune/papers/test_glue_metrics.py",
    [
      (
        "equal logits are class 0 for Matthews too",
        "outputs[:, 0] <= outputs[:, 1]",
        "outputs[:, 0] < outputs[:, 1]",
        "test_equal_logits_are_class_0_for_accuracy_and_class_1_for_matthews",
      ),
      (
        "correlation in the numbers' own precision",
        "stats.pearsonr(np.asarray(x, np.float64), np.asarray(y, np.float64))",
        "stats.pearsonr(np.asarray(x), np.asarray(y))",
        "test_pearson_of_small_differences_about_a_large_mean_is_summed_in_float64",
      ),
      (
        "WNLI is in the average",
        'AVERAGED = tuple(task for task in METRICS if task != "wnli")',
        "AVERAGED = tuple(METRICS)",
        "test_average_is_over_eight_tasks_without_wnli",
      ),
      (
        "TACO judges as the others",
        'if protocol == "taco" else names[0]',
        'if protocol == "" else names[0]',
        "test_taco_judges_by_f1_where_the_others_judge_by_accuracy",
      ),
    ],
  ),
  (
    "finetune/squad/scores.py",
    "tests/finetune/squad/test_scores.py",
    [
      (
        "articles go before punctuation",
        '_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION))',
        '_ARTICLE.sub(" ", text.lower()).translate(_PUNCTUATION)',
        "test_normalisation_drops_case_punctuation_articles_and_spaces",
      ),
      (
        "the first gold answer counts",
        "exact[name] = max(exact_match(text, predictions[name]) for text in texts)",
        "exact[name] = exact_match(texts[0], predictions[name])",
        "test_best_of_several_gold_answers_counts",
      ),
      (
        "odds equal to the threshold are empty",
        "null_odds[name] > threshold else value",
        "null_odds[name] >= threshold else value",
        "test_odds_above_the_threshold_make_the_answer_empty",
      ),
      (
        "an empty text costs an unanswerable question",
        "elif predictions[name]:",
        "else:",
        "test_an_unanswerable_question_rightly_left_empty_costs_nothing",
      ),
      (
        "the last of equal totals is the best threshold",
        "if total > best:",
        "if total >= best:",
        "test_the_first_of_equal_totals_is_the_best_threshold",
      ),
    ],
  ),
  (
    "finetune/squad/decoding.py",
    "tests/finetune/squad/test_decoding.py",
    [
      (
        "separators may be answers",
        "in_document[window.part] = True",
        "in_document[:] = True",
        "test_query_separators_and_padding_are_never_chosen",
      ),
      (
        "start need not have the largest context",
        "can_start[window.part] = has_most_context",
        "can_start[window.part] = True",
        "test_start_must_be_where_its_context_is_largest_and_end_need_not",
      ),
      (
        "equal logits in any order",
        'kind="stable")[:count]',
        'kind="stable")[:count][::-1]',
        "test_equal_scores_keep_the_order_of_windows_starts_and_ends",
      ),
      (
        "one token too many",
        "(size <= settings.max_answer_length)",
        "(size <= settings.max_answer_length + 1)",
        "test_end_is_not_before_start_and_not_too_far",
      ),
      (
        "the highest null of the windows",
        "null = min(",
        "null = max(",
        "test_null_is_the_lowest_of_the_windows",
      ),
      (
        "a text counts by its last span",
        "kept.setdefault(text, (span.start_logit, span.end_logit))",
        "kept[text] = (span.start_logit, span.end_logit)",
        "test_a_text_counts_once_by_its_best_span",
      ),
    ],
  ),
]
