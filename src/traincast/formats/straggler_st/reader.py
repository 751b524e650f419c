"""What reads traces of the straggler study."""

from traincast.formats.contract import Reader
from traincast.formats.straggler_st.read import inspect_file, read_workload

READER = Reader(describe=inspect_file, read_run=read_workload)
