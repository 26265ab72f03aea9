"""Embedding models: evaluation on pairs and on retrieval, and hard negatives.

`pairs` reads rows of two texts with a label, `pair_scores` scores them. `beir` reads a folder of retrieval,
`nearest` and `bm25` search it, and `retrieval` scores the results. `evaluate` makes the report of both.
`mining` chooses hard negatives.
"""
