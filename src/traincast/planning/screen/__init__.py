"""The whole space of layouts on arrays: a step time and a peak of memory for every one."""
