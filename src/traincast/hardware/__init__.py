"""What a job runs on: GPUs with their datasheets and capabilities, nodes, links, networks and clusters; their files."""
