"""Pipeline schedules as pure integer plans: who runs which microbatch of which virtual stage, in what order."""
