"""Faults of probes and of the analyses that stand beside them. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "lab/analysis/probes.py",
    "tests/lab/analysis/test_probes.py",
    [
      (
        "a word is read beside the word before its head",
        "vectors[heads[heads >= 0]]], axis=-1))",
        "vectors[heads[heads >= 0] - 1]], axis=-1))",
        "test_a_relation_is_read_off_a_word_and_its_own_head",
      ),
      (
        "both nouns of a relation are the first one",
        "means = [vectors[first:behind].mean(axis=0) for first, behind in relation.spans]",
        "means = [vectors[first:behind].mean(axis=0) for first, behind in relation.spans[:1] * 2]",
        "test_the_tag_of_a_word_and_the_relation_of_two_spans_are_read_off_their_vectors",
      ),
      (
        "a form is ambiguous by its rarest tag",
        "counts.most_common(1)[0][1] / counts.total()",
        "counts.most_common()[-1][1] / counts.total()",
        "test_words_are_ambiguous_by_their_tags_in_training_and_unseen_without_any",
      ),
      (
        "the vectors of a sentence are read by the other pooling",
        "yield self._figure(linear.predictions(vectors, _labels(self.train), test[read]), read)",
        'yield self._figure(linear.predictions(vectors, _labels(self.train), test["cls"]), read)',
        "test_praise_is_read_off_the_vector_of_its_own_sentence",
      ),
      (
        "a sentence is compared with another pair's",
        "yield self._figure(linear.cosines(vectors, second[read]), read)",
        "yield self._figure(linear.cosines(vectors, second[read][::-1]), read)",
        "test_cosines_of_the_two_sentences_are_ranked_as_people_rank_them",
      ),
      (
        "the ungrammatical sentence should be the likelier one",
        "right = (good > bad) + 0.5 * (good == bad)",
        "right = (good < bad) + 0.5 * (good == bad)",
        "test_the_grammatical_sentence_is_the_one_that_must_be_likelier",
      ),
      (
        "a pair knows its own answer",
        "often, seldom = counts[good, bad] - 1, counts[bad, good]",
        "often, seldom = counts[good, bad], counts[bad, good]",
        "test_without_a_model_the_other_pairs_of_two_forms_decide",
      ),
    ],
  ),
  (
    "lab/analysis/edges.py",
    "tests/lab/analysis/test_edges.py",
    [
      (
        "a span has a word too many",
        "means = [of_words[first:behind].mean(axis=0) for first, behind in target.spans]",
        "means = [of_words[first : behind + 1].mean(axis=0) for first, behind in target.spans]",
        "test_a_span_is_the_mean_of_its_words_and_two_are_joined",
      ),
      (
        "labels beside the right ones cost nothing",
        "return 2 * right / max(sum(map(len, gold)) + sum(map(len, found)), 1)",
        "return right / max(sum(map(len, gold)), 1)",
        "test_f1_counts_labels_that_are_wrong_and_labels_that_are_missing",
      ),
      (
        "a word is asked about without its head",
        "Target(((at, at + 1), (head, head + 1)), (relation,))",
        "Target(((at, at + 1), (at, at + 1)), (relation,))",
        "test_tasks_of_a_treebank_ask_about_tags_and_about_words_with_their_heads",
      ),
    ],
  ),
  (
    "lab/analysis/probed_models.py",
    "tests/lab/analysis/test_probed_models.py",
    [
      (
        "an untrained encoder is asked with trained heads",
        "encoders[before].heads |= heads",
        'encoders[before].heads |= saved.params["heads"]',
        "test_minimal_pairs_stand_beside_those_of_the_initial_heads",
      ),
      (
        "an untrained head stands for another one",
        "if shapes[known] == shape and _agree(encoders[known].heads, heads)]",
        "if shapes[known] == shape]",
        "test_checkpoints_share_an_untrained_encoder_unless_a_head_began_otherwise",
      ),
    ],
  ),
  (
    "lab/analysis/words.py",
    "tests/lab/analysis/test_edges.py",
    [
      (
        "the layers of a generator are in the wrong order",
        "jnp.moveaxis(output.features, 0, 2)",
        "jnp.moveaxis(output.features[::-1], 0, 2)",
        "test_a_generator_is_asked_layer_by_layer_beside_the_encoder",
      ),
      (
        "a generator is probed on masks",
        "masking = Masking(ids, positions,",
        "masking = Masking(jnp.full_like(ids, tokens.mask), positions,",
        "test_a_generator_is_asked_layer_by_layer_beside_the_encoder",
      ),
    ],
  ),
  (
    "lab/analysis/logs.py",
    "tests/lab/analysis/test_logs.py",
    [
      (
        "the average begins at nothing",
        "averages.append(total / weight)",
        "averages.append(total)",
        "test_the_sum_over_heads_is_left_out_where_there_are_several",
      ),
      (
        "the sum over heads is a head",
        "if len(logged) > 1:",
        "if len(logged) > 9:",
        "test_the_sum_over_heads_is_left_out_where_there_are_several",
      ),
      (
        "scores stand at the hours of the lines in their order",
        "taken = np.interp(steps, *clock)",
        "taken = clock[1][: len(steps)]",
        "test_scores_stand_at_the_hours_of_their_steps",
      ),
    ],
  ),
  (
    "lab/analysis/detection.py",
    "tests/lab/analysis/test_detection.py",
    [
      (
        "the loss at replaced tokens is that of all",
        '"loss at replaced": float(nats[truth].mean()) if truth.any() else None,',
        '"loss at replaced": float(nats.mean()) if truth.any() else None,',
        "test_calibration_of_the_true_rates_is_near_zero_and_of_a_wrong_constant_the_distance",
      ),
      (
        "bins of few tokens weigh as much as others",
        "distance = sum(count * abs(mean - share)",
        "distance = sum(abs(mean - share)",
        "test_calibration_of_the_true_rates_is_near_zero_and_of_a_wrong_constant_the_distance",
      ),
      (
        "the token that is suspected most comes first",
        "key=lambda token: (means[token], token))",
        "key=lambda token: (-means[token], token))",
        "test_the_token_that_is_never_suspected_fools_the_encoder_most",
      ),
    ],
  ),
  (
    "lab/analysis/plane.py",
    "tests/lab/analysis/test_plane.py",
    [
      (
        "a partner is the nearest one way",
        "float(np.mean([distances.argmin(0) == own, distances.argmin(1) == own]))",
        "float(np.mean([distances.argmin(1) == own]))",
        "test_a_partner_is_the_nearest_of_the_other_side_both_ways",
      ),
      (
        "the points of the two sides are mixed",
        "left, right = np.split(points, 2)",
        "left, right = points[::2], points[1::2]",
        "test_pairs_of_every_checkpoint_are_looked_for_in_space_and_in_the_plane",
      ),
    ],
  ),
]
