"""What a job runs on: GPUs with their datasheets and capabilities, nodes, links, networks and clusters; their files.

::

    gpu.py                Gpu: a datasheet and what its generation can do      data/gpus/{gpus,generations}.csv
    attention_kernels.py  which kernels a GPU runs
    cluster.py            Link, MeasuredTable, Cluster: whoever makes a cluster gets its GPU filled
    fabric.py, network.py the network between the nodes, as a table and as a graph
    clusters.py           load_cluster: a preset, a file, a GPU's name         data/clusters/*.toml
    from_datasheet.py     the cluster of a GPU that nobody measured collectives on; other nodes and network cards
"""
