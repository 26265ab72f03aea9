"""Inspects prepared records and vocabularies: sizes, lengths, pieces per word, duplicates, repairs.

`look` reads a directory, `scripts` and `languages` detect those of texts, `pieces` counts words in ids,
`reports` makes tables, and `page` an HTML page.
"""
