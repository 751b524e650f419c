"""Many jobs in one run that can be stopped and gone on with: a specification, points, chunks, a journal, a table.

`spec` reads what is asked for and lists the points; `points` forecasts one; `executors` run chunks of points, one
file each; `run` hands them out, tries again what died, and keeps `journal`; `rows` says what a point's row holds.
"""
