"""Runs on TPU and AMD chips, each with its source left out of the fit of the factors.

What their recipes say is added by the id of the row (`chip_facts.csv`: id, column, value, where it stands); a cell of a
recipe counts before that of the table, whose rows leave most of it empty.
"""
