"""Cleaning of documents by named steps, in the order in which they are written.

A step takes a document, a list of paragraphs, and returns the document that goes on or the reason why it is
dropped. Steps that look for duplicates first compare all documents and leave a list of those to drop.
`python -m data.prepare --clean='exact,near:0.8,language:en,length:200,repetition,symbols'`
"""
