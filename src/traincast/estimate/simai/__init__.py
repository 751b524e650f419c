"""SimAI-Analytical's own costs and total, for those who compare with it.

Nothing here is used by a simulation. The formulas are SimAI's with their faults, so that its
numbers come out to the microsecond; where it would crash or be silent, an error or a warning says so.

Source: aliyun/SimAI 1.6 (``f5efb5a9``), ``astra-sim-alibabacloud/astra-sim``: ``workload/Workload.cc``,
``workload/Layer.cc`` (``report``, ``compute_time``, ``cal_ratio``), ``system/calbusbw.cc``.
"""
