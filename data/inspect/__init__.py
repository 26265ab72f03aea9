"""A look at prepared text: sizes, lengths, pieces per word, copies, repairs, on a console and as a page.

`scripts` and `languages` name them, `pieces` counts words of ids, `look` reads a directory, `reports` makes
tables of that, `page` one HTML page.
"""
