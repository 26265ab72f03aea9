"""Index folders of vectors, and searches in them.

`index` opens a folder and answers queries, `build` writes one, and `exact` compares queries with all vectors.
"""
