"""Cleans documents by named steps, in the order of the flag `--clean`.

A step takes a document, which is a list of paragraphs, and returns the document for the next step or the
reason to drop it. Steps for duplicates first compare all documents and write lists of those to drop.
`python -m data.prepare --clean='exact,language:en,length:200,repetition,symbols,near:0.8'`
"""
