"""One step, from what every rank does to where its time went.

A file that was read, or a job whose work was built, is a workload. From there on every step has one life::

    workload    what every rank does (`traincast.workload`)
       |  lay out   one rank for all that are alike, over all virtual stages and microbatches; what was recorded
       |            operation by operation (`traincast.workload.recorder`) is taken as it is
    program     every operation of every simulated rank, and who follows whom
       |  cost      each communication on the links that groups of its kind share, each computation as it stands
    costs       how long every operation takes alone, and where that is known from
       |  settle    engine -> what overlaps, what shares links -> longer durations -> engine, until nothing changes
    timeline    when every operation was ready, started and ended
       |  account   who owns every instant, who is late, what was assumed, what looks wrong
    result      the contract ``traincast.result/1``

`traincast.simulation.step` lays out and costs, `overlap` and `settle` find the timeline, `account` makes the result.
`simulate` takes a workload through all of it, `forecast` a job, whose workload it builds; a forecast also has rates
(MFU), memory and an interval (`confidence`). How it is done is said once, by a `Setting`. What one step prepared and
another needs too is kept by the `Study` that both are handed, and by no module. `reproducible` loads what a user names,
and keeps in the result all that is needed to run it again.
"""
