"""The embedding stage: vectors of texts, trained on pairs, triplets, scores or plain texts."""
