"""Time the operators and collectives that a job needs on the user's own GPUs; `calibrate` reads what comes out.

`timing`, `kernels`, `collectives` and `run` import nothing of traincast but each other, so that `script` can make one
file of them, which runs where traincast is not installed.
"""
