"""The embedding stage: trains vectors of texts on pairs, triplets, scores or plain texts, and evaluates them.

`search` is the stage: `columns` and `load` read a user's file, `batches` and `problem` train, `scores` judges
development rows. `evaluate` reports on files: `pairs` and `pair_scores` on two texts with a label, `beir`,
`nearest`, `bm25` and `retrieval` on a folder of queries and passages. `mining` chooses hard negatives.
"""
