"""The embedding stage: trains vectors of texts on pairs, triplets, scores or plain texts, and evaluates them.

`search` is the stage: `load` reads a user's file, `problem` makes batches and the loss. `evaluate` reports on
files of pairs, and with `retrieval` and `nearest` on BEIR folders. `mining` chooses hard negatives.
"""
